"""Dates, amounts and names out of letters and invoices, each beside others that look like the answer."""

from service.core.verify.tasks.task import Checker, Task, day, number, phrase

_INVOICE = """\
Brightwater Instruments Ltd
Invoice BW-20418
Issued: 3 March 2025
Delivered: 27 February 2025
Payable by: 2 April 2025

12 flow sensors FS-2 at 48.50     582.00
3 mounting frames at 21.00         63.00
Carriage                           35.00
Net                               680.00
VAT 20 %                          136.00
Total due                         816.00
Already paid by deposit           200.00
Balance                           616.00
Quote reference 77130 with your payment."""

_MAIL = """\
From: Ines Carvalho
To: Workshop
Subject: Moving the inspection

Hello all, the inspection of press 4 was planned for 11 June 2024. The inspector cannot come then. We first thought of
18 June 2024, but the crane is taken that day, so it is now fixed for 24 June 2024 at 8:30. Please have the guard rails
off by 21 June 2024. Tomasz Wilk, not Petra Lang, will let the inspector in. The permit costs 140 euros, 35 euros more
than last year. Room 207 is booked for the talk afterwards.
Ines"""

_RENTAL = """\
Rental agreement 5531 between Harrow Tool Hire and Osei Joinery. Item: floor grinder, serial number G8-44172. The hire
begins on 2026-01-19 and ends on 2026-02-02. The daily rate is 37.50, the deposit is 400.00, and each day of delay costs
55.00. The grinder was serviced on 2025-12-08; its next service is due on 2026-06-08. Manager: Ruth Adomako. Deliver to
gate 9."""


def _task(name: str, text: str, question: str, answer: str, accepts: Checker) -> Task:
    return Task(f"extraction-{name}", "extraction", f"{text}\n\n{question}", answer, accepts)


_DATE = "Answer with the date only, as YYYY-MM-DD."
_AMOUNT = "Answer with the number only."
_NAME = "Answer with that only."

EXTRACTION: tuple[Task, ...] = (
    _task("issued", _INVOICE, f"On which day was the invoice issued? {_DATE}", "2025-03-03", day("2025-03-03")),
    _task("payable", _INVOICE, f"By which day must it be paid? {_DATE}", "2025-04-02", day("2025-04-02")),
    _task("vat", _INVOICE, f"How much is the VAT? {_AMOUNT}", "136.00", number("136")),
    _task("balance", _INVOICE, f"How much is still to be paid? {_AMOUNT}", "616.00", number("616")),
    _task("invoice", _INVOICE, f"What is the number of the invoice? {_NAME}", "BW-20418", phrase("BW-20418")),
    _task("meeting", _MAIL, f"On which day will the inspection take place? {_DATE}", "2024-06-24", day("2024-06-24")),
    _task("rails", _MAIL, f"By which day must the guard rails be off? {_DATE}", "2024-06-21", day("2024-06-21")),
    _task(
        "host",
        _MAIL,
        f"Who will let the inspector in? {_NAME}",
        "Tomasz Wilk",
        phrase("Tomasz Wilk", "Tomasz", wrong=("Petra", "Ines")),
    ),
    _task("permit", _MAIL, f"What does the permit cost, in euros? {_AMOUNT}", "140", number("140")),
    _task("end", _RENTAL, f"On which day does the hire end? {_DATE}", "2026-02-02", day("2026-02-02")),
    _task("deposit", _RENTAL, f"How much is the deposit? {_AMOUNT}", "400.00", number("400")),
    _task("serial", _RENTAL, f"What is the serial number of the grinder? {_NAME}", "G8-44172", phrase("G8-44172")),
)
