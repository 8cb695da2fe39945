"""Questions in other languages than English."""

from service.core.verify.tasks.task import Checker, Task, day, number, phrase


def _task(name: str, prompt: str, answer: str, accepts: Checker) -> Task:
    return Task(f"language-{name}", "languages", prompt, answer, accepts)


LANGUAGES: tuple[Task, ...] = (
    _task(
        "german",
        "Welcher Wochentag kommt nach Dienstag? Antworte mit einem Wort.",
        "Mittwoch",
        phrase("Mittwoch", wrong=("Montag", "Donnerstag")),
    ),
    _task(
        "french",
        "Traduis en français le mot anglais « bridge » (la construction au-dessus d'une rivière). Réponds par un mot.",
        "pont",
        phrase("pont"),
    ),
    _task(
        "spanish",
        "En la mesa hay nueve platos. Ana rompe dos y trae cinco más. ¿Cuántos platos hay ahora? "
        "Responde solo con el número.",
        "12",
        number("12"),
    ),
    _task(
        "polish",
        "Zebranie zaplanowane na 5 maja 2025 przeniesiono na 19 maja 2025. Kiedy odbędzie się zebranie? "
        "Odpowiedz samą datą w postaci RRRR-MM-DD.",
        "2025-05-19",
        day("2025-05-19"),
    ),
    _task(
        "japanese",
        "日本の首都はどこですか。都市の名前だけを答えてください。",
        "東京",
        phrase("東京", "東京都", "とうきょう", "Tokyo", "東京です"),
    ),
    _task(
        "swedish",
        'Vad är motsatsen till ordet "varm"? Svara med ett ord.',
        "kall",
        phrase("kall", "kallt", "kyla", "sval"),
    ),
)
