"""What is handed to the next instance fits into a control message, and arrives as it was."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dataplane.control import MAX_MESSAGE_BYTES
from dataplane.operators.base import MOST_CHECKPOINT_BYTES, MOST_LOSSES_KEPT, MOST_RECENT_KEPT, Loss, Published, Resume
from dataplane.operators.handover import resume_as_json, resume_from_json

I64 = st.integers(-(2**63), 2**63 - 1)
published = st.builds(
    Published,
    st.integers(0, 2**63),
    st.integers(0, 2**32 - 1),
    st.none() | I64,
    st.dictionaries(st.integers(0, 8), I64, max_size=4),
    st.frozensets(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=40),
)
losses = st.builds(Loss, st.none() | st.integers(0, 5), st.none() | I64, st.sampled_from(["a", "b", "ü"]))
resumes = st.builds(
    Resume,
    st.integers(2, 9),
    st.sampled_from(["died", "migrated"]),
    st.none() | st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3),
    st.dictionaries(st.sampled_from(["video", "audio"]), published, max_size=2),
    st.lists(losses, max_size=8).map(tuple),
)


@given(resumes)
def test_it_arrives_as_it_was(resume: Resume) -> None:
    assert resume_from_json(json.loads(json.dumps(resume_as_json(resume)))) == resume


def test_the_most_of_everything_is_one_message() -> None:
    """Losses all over a long recording, frames without gaps but for 50 that were lost, a big checkpoint."""
    lost = tuple(
        Loss(5_000_000 + 7 * n, 90_000_000_000 + n, f"reason {n % 4}" + "x" * 60) for n in range(MOST_LOSSES_KEPT)
    )
    recent = frozenset((3, 6_000_000 + n) for n in range(MOST_RECENT_KEPT + 50) if n % 80)
    known = Published(7_000_000, 3, 90_000_000_000, {0: 90_000_000_000}, recent)
    state = {"text": "x" * (MOST_CHECKPOINT_BYTES - 20)}

    message = json.dumps(resume_as_json(Resume(2, "died", state, {"video": known, "audio": known}, lost)))

    assert len(message) < 0.8 * MAX_MESSAGE_BYTES
