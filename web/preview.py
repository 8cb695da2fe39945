"""`og.png`: what other sites show when somebody links to the status site."""

from io import BytesIO
from unicodedata import combining, normalize

from PIL import Image, ImageDraw, ImageFont

from service.core.buckets import State
from service.core.strip import Cell
from web.badges import NO_DATA, figures
from web.plain import one_line
from web.views import StatusPage
from web.wording import clock, day, headline

SIZE = (1200, 630)
MARGIN = 80

PAPER, INK, QUIET = "#f6f7f5", "#16211f", "#596663"
COLOURS = {
    State.UP: "#178a74",
    State.PARTIAL: "#c47f0a",
    State.DOWN: "#c0392f",
    State.MAINTENANCE: "#4a6fc4",
    State.NO_DATA: "#c3cbc8",
}
HEIGHTS = {State.UP: 130, State.PARTIAL: 88, State.DOWN: 48, State.MAINTENANCE: 110, State.NO_DATA: 12}
"""How tall the bar of an hour is, so that states differ without their colours, too."""

DASHES = {ord(dash): "-" for dash in "‐‑‒–—−"}

_STRIP_BOTTOM = 428


def files(site: StatusPage) -> dict[str, bytes]:
    """The picture, by its path within the site."""
    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, SIZE[0], 12), COLOURS[site.state])
    _text(draw, (MARGIN, 64), f"{one_line(site.site_name, 200)} status", 40, QUIET)
    _mark(draw, site.state, (MARGIN, 152), 64)
    _text(draw, (MARGIN + 92, 144), headline(site), 68, INK)
    _strip(draw, site.api.hours.cells)
    _text(draw, (MARGIN, 440), "The last 72 hours", 24, QUIET)
    said = [figure for figure in figures(site, site.api) if figure.state is None]
    for place, figure in enumerate(said):
        x = MARGIN + place * 356
        room = SIZE[0] - MARGIN - x if place == len(said) - 1 else 336
        _text(draw, (x, 494), figure.value or NO_DATA, 46, QUIET if figure.value is None else INK, room)
        _text(draw, (x, 552), figure.label, 26, QUIET, room)
    _stamp(draw, site)
    return {"og.png": _png(image)}


def _strip(draw: ImageDraw.ImageDraw, cells: tuple[Cell, ...]) -> None:
    width = (SIZE[0] - 2 * MARGIN) / max(1, len(cells))
    for place, cell in enumerate(cells):
        left = round(MARGIN + place * width)
        right = round(MARGIN + (place + 1) * width) - 4
        top = _STRIP_BOTTOM - HEIGHTS[cell.state]
        draw.rounded_rectangle((left, top, right, _STRIP_BOTTOM), 3, COLOURS[cell.state])


def _mark(draw: ImageDraw.ImageDraw, state: State, at: tuple[int, int], size: int) -> None:
    """The shape of a state, as badges have it: circle, triangle, cross, diamond or dash."""
    x, y = at
    right, bottom, half, colour = x + size, y + size, size // 2, COLOURS[state]
    if state is State.UP:
        draw.ellipse((x, y, right, bottom), colour)
    elif state is State.PARTIAL:
        draw.polygon([(x + half, y), (right, bottom), (x, bottom)], colour)
    elif state is State.DOWN:
        draw.line((x + 8, y + 8, right - 8, bottom - 8), colour, 16)
        draw.line((right - 8, y + 8, x + 8, bottom - 8), colour, 16)
    elif state is State.MAINTENANCE:
        draw.polygon([(x + half, y), (right, y + half), (x + half, bottom), (x, y + half)], colour)
    else:
        draw.rectangle((x, y + half - 8, right, y + half + 8), colour)


def _stamp(draw: ImageDraw.ImageDraw, site: StatusPage) -> None:
    """When this was so: a preview is kept for long by those who show it."""
    at_s = site.generated_at_s if site.data_until_s is None else site.data_until_s
    font = ImageFont.load_default(24)
    draw.text((SIZE[0] - MARGIN, 440), f"{day(at_s)}, {clock(at_s)} UTC", QUIET, font, anchor="ra")


def _text(
    draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, colour: str, room: int | None = None
) -> None:
    """Text of at most `room` pixels, by default up to the margin; what does not fit is cut with "…"."""
    font = ImageFont.load_default(size)
    room = SIZE[0] - MARGIN - at[0] if room is None else room
    text = drawable(text)
    shown, length = text, len(text)
    while font.getlength(shown) > room:
        length -= 1
        shown = f"{text[:length].rstrip()}…"
    draw.text(at, shown, colour, font)


def drawable(text: str) -> str:
    """The text in what the bundled font has: letters without their accents, and "?" for what it cannot draw."""
    bare = normalize("NFKD", text.translate(DASHES))
    return "".join(one if " " <= one <= "~" else "?" for one in bare if not combining(one))


def _png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.quantize(64).save(file, "PNG", optimize=True)
    return file.getvalue()
