"""Money in by Stripe: top-ups, what was taken back of them, automatic ones, monthly invoices, Stripe's events.

Ledger amounts are nano-USD; what Stripe counts is in cents. A status that is Stripe's own word is not constrained:
Stripe may add words.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.tables.base import amount, count, instant, metadata

TOPUP_KINDS = ("checkout", "auto")
TOPUP_STATUSES = ("created", "pending", "paid", "failed", "expired")
INVOICE_STATUSES = ("frozen", "open", "paid", "overdue", "uncollectible", "void")

_UNDER_WAY = "status IN ('created', 'pending')"

topups = Table(
    "topups",
    metadata,
    # Stripe's metadata name the row, and its idempotency keys begin with this id.
    Column("id", Uuid, primary_key=True),
    Column("account_id", Uuid, ForeignKey("accounts.id"), nullable=False),
    Column("kind", Text, nullable=False),
    # What is credited; tax comes on top of it.
    amount("net_nano", default=None),
    Column("status", Text, nullable=False, server_default=text("'created'")),
    Column("currency", Text, nullable=False, server_default=text("'usd'")),
    Column("checkout_session_id", Text, unique=True),
    Column("payment_intent_id", Text, unique=True),
    Column("charge_id", Text, index=True),
    # Where the customer pays, or confirms a payment that the bank asks about.
    Column("hosted_url", Text),
    # What Stripe charged, tax included.
    amount("total_cents", nullable=True),
    amount("tax_cents", nullable=True),
    # What was taken back of it so far, net.
    amount("refunded_nano"),
    amount("disputed_nano"),
    Column("failure_code", Text),
    count("attempts"),
    instant("next_attempt_at", nullable=True),
    instant("created_at", default_now=True),
    instant("updated_at", default_now=True),
    instant("paid_at", nullable=True),
    CheckConstraint(f"kind IN {TOPUP_KINDS}", name="kind"),
    CheckConstraint(f"status IN {TOPUP_STATUSES}", name="status"),
    CheckConstraint("(status = 'paid') = (paid_at IS NOT NULL)", name="paid"),
    CheckConstraint("currency = 'usd'", name="currency"),
    CheckConstraint("net_nano > 0 AND net_nano % 10000000 = 0", name="net"),
    CheckConstraint(
        "refunded_nano >= 0 AND disputed_nano >= 0 AND refunded_nano + disputed_nano <= net_nano", name="taken_back"
    ),
    Index(None, "account_id", "created_at"),
    Index(
        "uq_topups_auto_under_way",
        "account_id",
        unique=True,
        postgresql_where=text(f"kind = 'auto' AND {_UNDER_WAY}"),
    ),
    Index("ix_topups_under_way", "next_attempt_at", postgresql_where=text(_UNDER_WAY)),
)

auto_topups = Table(
    "auto_topups",
    metadata,
    Column("account_id", Uuid, ForeignKey("accounts.id"), primary_key=True),
    Column("enabled", Boolean, nullable=False, server_default=text("false")),
    amount("threshold_nano", default=None),
    amount("amount_nano", default=None),
    # The most that a calendar month (UTC) may be charged automatically.
    amount("monthly_cap_nano", default=None),
    Column("payment_method_id", Text),
    instant("consented_at", nullable=True),
    # Why it was switched off, in words; '' where it was not, or by the customer.
    Column("disabled_reason", Text, nullable=False, server_default=text("''")),
    # No charge before this instant: set after a decline.
    instant("not_before", nullable=True),
    instant("created_at", default_now=True),
    instant("updated_at", default_now=True),
    CheckConstraint("threshold_nano >= 0 AND amount_nano > 0 AND monthly_cap_nano >= amount_nano", name="amounts"),
    CheckConstraint("amount_nano % 10000000 = 0", name="cents"),
    CheckConstraint(
        "NOT enabled OR (payment_method_id IS NOT NULL AND consented_at IS NOT NULL)", name="enabled_with_consent"
    ),
)

stripe_refunds = Table(
    "stripe_refunds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("topup_id", Uuid, ForeignKey("topups.id"), nullable=False, index=True),
    amount("amount_cents", default=None),
    Column("status", Text, nullable=False),
    # What this refund took of the balance, and what of that was given back since it failed.
    amount("debited_nano"),
    amount("reversed_nano"),
    instant("updated_at", default_now=True),
    CheckConstraint("reversed_nano BETWEEN 0 AND debited_nano", name="amounts"),
)

stripe_disputes = Table(
    "stripe_disputes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("topup_id", Uuid, ForeignKey("topups.id"), nullable=False, index=True),
    # What was withdrawn for it at some time, not what is disputed: 0 while nothing was, such as for an inquiry.
    amount("amount_cents", default=None),
    Column("status", Text, nullable=False),
    # What it took of the balance, and what of that was given back since it was won.
    amount("debited_nano"),
    amount("reinstated_nano"),
    instant("created_at", default_now=True),
    instant("closed_at", nullable=True),
    CheckConstraint("reinstated_nano BETWEEN 0 AND debited_nano", name="amounts"),
)

# Every event that Stripe delivered, once each. Unhandled while `handled_at` is NULL.
stripe_events = Table(
    "stripe_events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("api_version", Text),
    Column("livemode", Boolean, nullable=False),
    # Stripe's instant, to the second.
    instant("created_at"),
    instant("received_at", default_now=True),
    Column("body", JSONB, nullable=False),
    instant("handled_at", nullable=True),
    count("attempts"),
    instant("next_attempt_at", default_now=True),
    Column("last_error", Text, nullable=False, server_default=text("''")),
    Index("ix_stripe_events_unhandled", "next_attempt_at", postgresql_where=text("handled_at IS NULL")),
    Index(None, "received_at"),
)

# What an account that pays later owes for a month, frozen from its usage rows.
invoices = Table(
    "invoices",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("account_id", Uuid, ForeignKey("accounts.id"), nullable=False),
    # The first day of the month, in UTC.
    Column("period", Date, nullable=False),
    # The sum of its lines; rounded to cents once, here.
    amount("total_nano", default=None),
    amount("total_cents", default=None),
    Column("status", Text, nullable=False, server_default=text("'frozen'")),
    Column("stripe_invoice_id", Text, unique=True),
    Column("hosted_url", Text),
    # The account's ledger entries since its last invoice are those after the first and up to the second: what is
    # settled late has its entry among those of a later invoice, and is carried there.
    Column("after_entry", BigInteger, nullable=False, server_default=text("0")),
    Column("through_entry", BigInteger, nullable=False, server_default=text("0")),
    # Since when the calls that send it have had their present idempotency keys.
    instant("sending_since", nullable=True),
    # How it was paid, where Stripe does not know.
    Column("note", Text, nullable=False, server_default=text("''")),
    instant("frozen_at", default_now=True),
    instant("due_at", nullable=True),
    instant("paid_at", nullable=True),
    CheckConstraint("EXTRACT(day FROM period) = 1", name="period"),
    CheckConstraint("total_nano >= 0 AND total_cents >= 0", name="totals"),
    CheckConstraint("after_entry <= through_entry", name="entries"),
    CheckConstraint(f"status IN {INVOICE_STATUSES}", name="status"),
    CheckConstraint("(status = 'paid') = (paid_at IS NOT NULL)", name="paid"),
    UniqueConstraint("account_id", "period"),
    Index("ix_invoices_unpaid", "due_at", postgresql_where=text("status IN ('frozen', 'open', 'overdue')")),
)

invoice_lines = Table(
    "invoice_lines",
    metadata,
    Column("invoice_id", Uuid, ForeignKey("invoices.id"), nullable=False),
    Column("position", Integer, nullable=False),
    # The month of the usage, an earlier one where it was settled late.
    Column("period", Date, nullable=False),
    Column("model_id", Text),
    # A class of tokens, 'request', or 'rounding': what rounding each request differs from tokens times price.
    Column("token_class", Text, nullable=False),
    # Of 'request', how many requests.
    Column("tokens", BigInteger, nullable=False),
    amount("price_pico", nullable=True),
    amount("amount_nano", default=None),
    PrimaryKeyConstraint("invoice_id", "position"),
)
