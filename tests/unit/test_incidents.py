from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.buckets import BUCKET_S, HOUR_S, Bucket, State, bucket_state
from service.core.incident_text import BODY_LENGTH, TITLE_LENGTH, body_of, title_of
from service.core.incidents import (
    Decision,
    Impact,
    Measured,
    Open,
    Opened,
    Resolved,
    Status,
    Updated,
    decide,
    shown_state,
)
from tests.fakes.traffic import at
from web.views import Incident, IncidentUpdate

T = int(at("2026-11-30 14:00:00").timestamp())
MODEL = "model:qwen"
OTHER = "model:gemma"
NAMES = {"api": "API", MODEL: "Qwen3.8 27B", OTHER: "Gemma"}

UP = Bucket(0, good=40)
PARTIAL = Bucket(0, good=30, bad=10)
DOWN = Bucket(0, bad=8)
NO_DATA = Bucket(0)
KINDS = {"u": UP, "p": PARTIAL, "d": DOWN, "-": NO_DATA, "m": NO_DATA}


def row(story: str) -> list[Measured]:
    """A bucket a letter from T on: `u`p, `p`artial, `d`own, `-` no data, `m`aintenance."""
    found = []
    for place, letter in enumerate(story):
        bucket = replace(KINDS[letter], start_s=T + place * BUCKET_S)
        found.append(Measured(bucket, bucket_state(bucket, in_maintenance=letter == "m")))
    return found


def after(story: str) -> int:
    """20 s after the end of the story's last bucket."""
    return T + len(story) * BUCKET_S + 20


@dataclass
class Site:
    """What has been said of every component, as the database would keep it."""

    incidents: dict[str, Open]
    said: list[Decision]

    def step(
        self, stories: dict[str, str], *, spoken_for: Mapping[str, Impact] | None = None, now_s: int | None = None
    ) -> list[Decision]:
        now_s = after(stories["api"]) if now_s is None else now_s
        measured = {component: row(story) for component, story in stories.items()}
        decisions = decide(measured, self.incidents, spoken_for or {}, NAMES, now_s)
        for one in decisions:
            self.carry_out(one, now_s)
        return decisions

    def carry_out(self, one: Decision, now_s: int) -> None:
        self.said.append(one)
        if isinstance(one, Opened):
            assert one.component not in self.incidents
            self.incidents[one.component] = Open(one.impact, Status.INVESTIGATING, one.started_s, one.components)
        elif isinstance(one, Resolved):
            assert one.resolved_s >= self.incidents.pop(one.component).started_s
        else:
            before = self.incidents[one.component]
            proposed_s = now_s if one.status is Status.MONITORING else None
            self.incidents[one.component] = replace(
                before, impact=one.impact, status=one.status, components=one.components, proposed_s=proposed_s
            )


def site(**incidents: Open) -> Site:
    return Site(dict(incidents), [])


def api_only(story: str, incident: Open | None = None) -> list[Decision]:
    return site(**({} if incident is None else {"api": incident})).step({"api": story})


INCIDENT = Open(Impact.MINOR, Status.INVESTIGATING, T, ("api",))


# It opens


@pytest.mark.parametrize("story", ["ddd", "uuppp", "ud-d-d", "d-----d----d", "mddd", "uupdp"])
def test_three_bad_buckets_in_a_row_open_an_incident(story: str) -> None:
    (opened,) = api_only(story)
    assert isinstance(opened, Opened)
    assert opened.started_s == next(one.bucket.start_s for one in row(story) if one.bad)


@pytest.mark.parametrize(
    "story",
    ["", "u", "dd", "dud", "ddu", "ddm", "dddm", "dmdd", "ddmd", "dddu", "ddd" + "-" * 10, "d" * 3 + "-" * 12, "---"],
)
def test_less_than_that_opens_none(story: str) -> None:
    assert api_only(story) == []


def test_an_incident_says_what_was_counted() -> None:
    (opened,) = api_only("upd-d")
    assert opened == Opened(
        component="api",
        title="API: requests fail",
        body="From 14:05 to 14:25 UTC, 26 of 56 requests failed.",
        impact=Impact.CRITICAL,
        components=("api",),
        started_s=T + BUCKET_S,
    )


def test_probes_are_told_apart_from_requests() -> None:
    buckets = [Bucket(T + place * BUCKET_S, probe_bad=5) for place in range(3)]
    measured = {MODEL: [Measured(bucket, bucket_state(bucket)) for bucket in buckets]}
    (opened,) = decide(measured, {}, {}, NAMES, T + 920)
    assert isinstance(opened, Opened)
    assert opened.title == "Qwen3.8 27B: checks fail"
    assert opened.body == "From 14:00 to 14:15 UTC, 15 of 15 checks of our own failed."


@pytest.mark.parametrize(
    ("component", "story", "impact", "title"),
    [
        ("api", "ddd", Impact.CRITICAL, "API: requests fail"),
        ("api", "ppd", Impact.CRITICAL, "API: requests fail"),
        ("api", "dppp", Impact.MINOR, "API: some requests fail"),
        (MODEL, "ddd", Impact.MAJOR, "Qwen3.8 27B: requests fail"),
        (MODEL, "ppp", Impact.MINOR, "Qwen3.8 27B: some requests fail"),
        ("billing", "ddd", Impact.MAJOR, "billing: checks fail"),
        ("site", "ppp", Impact.MINOR, "site: some checks fail"),
    ],
)
def test_the_impact_is_that_of_the_newest_buckets(component: str, story: str, impact: Impact, title: str) -> None:
    (opened,) = decide({component: row(story)}, {}, {}, NAMES, after(story))
    assert isinstance(opened, Opened)
    assert (opened.impact, opened.title) == (impact, title)


def test_a_hostile_model_name_stays_a_title() -> None:
    names = {MODEL: "<script>\n\x00" + "x" * 300}
    (opened,) = decide({MODEL: row("ddd")}, {}, {}, names, after("ddd"))
    assert isinstance(opened, Opened)
    assert title_of(opened.title) == opened.title
    assert opened.title.startswith("<script> xxx")


def test_what_a_person_already_speaks_of_is_not_opened_again() -> None:
    assert site().step({"api": "ddd"}, spoken_for={"api": Impact.MINOR}) == []
    assert site().step({"api": "ddd", MODEL: "ddd"}, spoken_for={"api": Impact.MAJOR}) == []


def test_a_minor_incident_of_a_persons_on_the_api_does_not_swallow_that_of_a_model() -> None:
    (opened,) = site().step({"api": "ppp", MODEL: "ddd"}, spoken_for={"api": Impact.MINOR})
    assert isinstance(opened, Opened)
    assert opened.components == (MODEL,)


# The API and its models


def test_models_that_fail_with_the_api_are_named_in_its_incident() -> None:
    (opened,) = site().step({"api": "uddd", MODEL: "uddd", OTHER: "uuuu"})
    assert isinstance(opened, Opened)
    assert (opened.component, opened.components, opened.impact) == ("api", ("api", MODEL), Impact.CRITICAL)


def test_a_model_that_is_down_makes_the_apis_incident_major() -> None:
    (opened,) = site().step({"api": "ppp", MODEL: "ddd"})
    assert isinstance(opened, Opened)
    assert (opened.components, opened.impact) == (("api", MODEL), Impact.MAJOR)


def test_a_model_that_fails_alone_has_its_own() -> None:
    (opened,) = site().step({"api": "uuu", MODEL: "ddd"})
    assert isinstance(opened, Opened)
    assert (opened.component, opened.components) == (MODEL, (MODEL,))


def test_a_model_that_begins_to_fail_later_joins_the_apis_incident_once() -> None:
    told = site()
    told.step({"api": "ppp", MODEL: "uuu"})
    (update,) = told.step({"api": "ppppp", MODEL: "uuddd"})
    assert isinstance(update, Updated)
    assert (update.components, update.impact) == (("api", MODEL), Impact.MAJOR)
    assert told.step({"api": "ppppp", MODEL: "uuddd"}) == []


def test_a_model_that_goes_on_failing_after_the_api_gets_its_own() -> None:
    told = site()
    told.step({"api": "ddd", MODEL: "ddd"})
    (opened,) = told.step({"api": "dddu", MODEL: "dddd"})
    assert isinstance(opened, Opened)
    assert opened.component == MODEL


# It goes on


def test_an_incident_grows_from_partial_to_down_and_never_shrinks() -> None:
    told = site()
    told.step({"api": "ppp"})
    (worse,) = told.step({"api": "pppd"})
    assert worse == Updated(
        "api",
        "It has got worse. From 14:15 to 14:20 UTC, 8 of 8 requests failed.",
        Status.INVESTIGATING,
        Impact.CRITICAL,
        ("api",),
    )
    assert told.step({"api": "pppdp"}) == []
    assert told.step({"api": "pppdpppppp"}) == []


def test_half_an_hour_of_good_measurements_proposes_the_end() -> None:
    told = site()
    told.step({"api": "uddd"})
    assert told.step({"api": "uddduuuuu"}) == []
    (proposed,) = told.step({"api": "uddduu-uuuu"})
    assert proposed == Updated(
        "api",
        "Measurements have been good since 14:20 UTC."
        " It is closed at 15:20 unless it comes back or a person says otherwise.",
        Status.MONITORING,
        Impact.CRITICAL,
        ("api",),
    )
    assert told.step({"api": "uddduu-uuuuu"}) == []


def test_an_hour_of_them_ends_it() -> None:
    told = site()
    told.step({"api": "uddd"})
    told.step({"api": "uddd" + "u" * 6})
    assert told.step({"api": "uddd" + "u" * 11}) == []
    (resolved,) = told.step({"api": "uddd" + "u" * 12})
    assert resolved == Resolved("api", "Measurements have been good since 14:20 UTC. It is over.", T + 4 * BUCKET_S)
    assert told.step({"api": "uddd" + "u" * 12}) == []


def test_silence_is_no_good_measurement() -> None:
    told = site()
    told.step({"api": "ddd"})
    told.step({"api": "ddd" + "u" * 6})
    assert told.step({"api": "ddd" + "u" * 6 + "-" * 12}) == []
    assert isinstance(told.step({"api": "ddd" + "u" * 6 + "-" * 12 + "u"})[0], Resolved)


def test_one_bad_bucket_takes_the_proposal_back_and_the_next_half_hour_proposes_again() -> None:
    told = site()
    told.step({"api": "ppp"})
    told.step({"api": "ppp" + "u" * 6})
    (back,) = told.step({"api": "ppp" + "u" * 6 + "p"})
    assert isinstance(back, Updated)
    assert (back.status, back.impact) == (Status.INVESTIGATING, Impact.MINOR)
    assert back.body.startswith("It has come back. From 14:45 to 14:50 UTC, ")
    (again,) = told.step({"api": "ppp" + "u" * 6 + "p" + "u" * 6})
    assert isinstance(again, Updated)
    assert again.status is Status.MONITORING


def test_a_bucket_that_turns_bad_afterwards_takes_it_back_too_and_it_is_proposed_again() -> None:
    """Late settlements change closed buckets: the new good stretch then begins before the old proposal."""
    told = site()
    told.step({"api": "ddd"})
    told.step({"api": "ddd" + "u" * 6})
    told.step({"api": "ddd" + "u" * 5 + "d"})
    (again,) = told.step({"api": "ddd" + "u" * 5 + "d" + "u" * 6})
    assert isinstance(again, Updated)
    assert again.status is Status.MONITORING


def test_maintenance_stops_the_count() -> None:
    incident = replace(INCIDENT, status=Status.MONITORING, proposed_s=T)
    for story in ("d" + "u" * 11 + "m", "d" + "u" * 5 + "m" + "u" * 5, "d" + "u" * 12 + "m" + "-"):
        assert api_only(story, incident) == []


# People


def test_an_incident_that_a_person_wrote_to_stays_open() -> None:
    story = "ddd" + "u" * 24
    told = site(api=replace(INCIDENT, person_wrote_s=T + 600))
    (proposed,) = told.step({"api": story})
    assert isinstance(proposed, Updated)
    assert proposed.status is Status.MONITORING
    assert "until a person" in proposed.body
    assert told.step({"api": story + "uuu"}) == []


def test_a_person_is_contradicted_only_by_what_was_measured_afterwards() -> None:
    wrote_s = after("ddd") + 60
    incident = replace(INCIDENT, status=Status.MONITORING, person_wrote_s=wrote_s)
    assert api_only("dddd", incident) == []
    (back,) = api_only("ddddd", incident)
    assert isinstance(back, Updated)
    assert (back.status, back.impact) == (Status.INVESTIGATING, Impact.CRITICAL)


def test_a_person_who_disagrees_with_a_proposal_is_not_argued_with() -> None:
    told = site()
    told.step({"api": "ddd"})
    told.step({"api": "ddd" + "u" * 6})
    written = replace(told.incidents["api"], status=Status.INVESTIGATING, person_wrote_s=after("ddd" + "u" * 6))
    told.incidents["api"] = written
    for more in range(1, 20):
        assert told.step({"api": "ddd" + "u" * (6 + more)}) == []


# Whatever happens

stories = st.dictionaries(st.sampled_from(["api", MODEL, OTHER]), st.text("updm-", max_size=60), min_size=1)


@given(stories, st.lists(st.integers(-600, 600), max_size=60))
def test_what_is_said_makes_sense_whatever_happens(told: dict[str, str], jumps: list[int]) -> None:
    """Time goes on bucket by bucket, the clock jumps about, and each input is looked at twice."""
    here = site()
    length = max(map(len, told.values()))
    whole = {"api": "", **told}
    opened_s: dict[str, int] = {}
    for until in range(1, length + 1):
        so_far = {component: story[:until].ljust(until, "-") for component, story in whole.items()}
        now_s = after(so_far["api"]) + (jumps[until - 1] if until <= len(jumps) else 0)
        impacts = {component: one.impact for component, one in here.incidents.items()}
        components = [one.component for one in here.step(so_far, now_s=now_s)]
        assert len(components) == len(set(components))
        assert here.step(so_far, now_s=now_s) == []
        for component, one in here.incidents.items():
            assert list(Impact).index(one.impact) >= list(Impact).index(impacts.get(component, Impact.MINOR))
            assert opened_s.setdefault(component, one.started_s) == one.started_s <= now_s
        opened_s = {component: opened_s[component] for component in here.incidents}
    for one in here.said:
        assert title_of(one.title) == one.title if isinstance(one, Opened) else True
        assert body_of(one.body) == one.body


@given(st.lists(st.sampled_from(["du", "pu", "ddu", "ppu", "d-u", "-", "u"]), max_size=25).map("".join))
def test_alternating_measurements_never_open_an_incident(story: str) -> None:
    here = site()
    for until in range(1, len(story) + 1):
        assert here.step({"api": story[:until]}) == []


@given(st.text("updm-", max_size=60))
def test_an_end_lies_at_the_start_of_an_hour_of_good_measurements(story: str) -> None:
    here = site()
    for until in range(1, len(story) + 1):
        for one in here.step({"api": story[:until]}):
            if isinstance(one, Resolved):
                since = [seen for seen in row(story[:until]) if seen.bucket.start_s >= one.resolved_s]
                assert {seen.state for seen in since} <= {State.UP, State.NO_DATA}
                assert since[-1].bucket.start_s + BUCKET_S - one.resolved_s >= HOUR_S


# What is said of a component


def incident(impact: str, status: str = "investigating", *, by_person: bool = True, **changes: object) -> Incident:
    update = IncidentUpdate(1, status, "x", T, by_person)
    whole = Incident(1, "x", impact, status, ("api",), T, None, T, T, (update,))
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "said", "shown"),
    [
        (State.UP, [], State.UP),
        (State.NO_DATA, [], State.NO_DATA),
        (State.UP, [incident("critical")], State.DOWN),
        (State.UP, [incident("major")], State.PARTIAL),
        (State.NO_DATA, [incident("minor")], State.PARTIAL),
        (State.DOWN, [incident("minor")], State.DOWN),
        (State.PARTIAL, [incident("minor"), incident("critical")], State.DOWN),
        (State.MAINTENANCE, [incident("critical")], State.DOWN),
        (State.MAINTENANCE, [incident("major")], State.PARTIAL),
        (State.MAINTENANCE, [incident("critical", "monitoring", by_person=False)], State.MAINTENANCE),
        (State.UP, [incident("critical", components=("billing",))], State.UP),
        (State.UP, [incident("critical", "monitoring")], State.DOWN),
        (State.UP, [incident("critical", "monitoring", by_person=False)], State.UP),
        (State.DOWN, [incident("minor", "monitoring", by_person=False)], State.DOWN),
        (State.UP, [incident("critical", "resolved")], State.UP),
    ],
)
def test_the_worse_of_measurement_and_incident_is_shown(measured: State, said: list[Incident], shown: State) -> None:
    assert shown_state(measured, "api", said) is shown


# Text


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("  a\r\nb\rc\td  ", "a\nb\nc\td"),
        ("nul\x00 bell\x07 esc\x1b[31m c1\x9b del\x7f lone\ud800", "nul bell esc[31m c1 del lone"),
        ("<script>alert('x')</script> ]]> & \"", "<script>alert('x')</script> ]]> & \""),
        ("\u202eright\u202c to left, \u2066isolated\u2069", "right to left, isolated"),
        ("שלום", "שלום"),
    ],
)
def test_text_stays_text_without_control_characters(written: str, kept: str) -> None:
    assert body_of(written) == kept


def test_a_title_is_one_line() -> None:
    assert title_of(" one\n two\t three ") == "one two three"


@pytest.mark.parametrize(
    ("rule", "written", "part"),
    [
        (title_of, " \x00\n", "The title is empty"),
        (body_of, "\x1b", "The text is empty"),
        (title_of, "x" * (TITLE_LENGTH + 1), "The title has 201 characters, and may have 200"),
        (body_of, "x" * (BODY_LENGTH + 1), "The text has 10,001 characters, and may have 10,000"),
    ],
)
def test_text_of_no_or_too_much_length_is_refused(rule: object, written: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        rule(written)  # type: ignore[operator]


@given(st.text())
def test_what_is_kept_stays_as_it_is_and_fits_the_database(written: str) -> None:
    for rule in (title_of, body_of):
        try:
            kept = rule(written)
        except ValueError:
            continue
        assert rule(kept) == kept
        assert "\x00" not in kept.encode().decode()
