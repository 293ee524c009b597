"""Which operators pipelines have in common."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import av
import pytest

from dataplane.operators.base import SourceRequest
from observatory.app.prefixes import Member, common_prefix, key_in, sources_by_key
from observatory.app.typed import TypedPipeline, type_pipeline
from observatory.model.pipeline import OnFull, OperatorNode, Pipeline, Qos, SharedMemoryProfile

SMALL = {"source": {"size": "160x90"}}


def outlet(name: str) -> tuple[OperatorNode, OperatorNode]:
    """An encoder and a sink behind that operator; nothing is written."""
    path = str(Path(tempfile.gettempdir()) / f"{name}.mp4")
    enc = OperatorNode(name=f"enc-{name}", op="encode", inputs=(name,), params={"codec": "libx264", "bitrate": "1M"})
    return enc, OperatorNode(name=f"out-{name}", op="mux", inputs=(enc.name,), params={"path": path})


def typed(
    *operators: tuple[str, str, str | None, dict[str, Any]], request: SourceRequest | None = None, **wishes: Any
) -> TypedPipeline:
    """Operators as (name, op, input, parameters), a sink behind the last one of them."""
    nodes = [
        OperatorNode(name=name, op=op, inputs=() if above is None else (above,), params=params)
        for name, op, above, params in operators
    ]
    pipeline = Pipeline(name="p", operators=(*nodes, *outlet(nodes[-1].name)), **wishes)
    return type_pipeline(pipeline, {nodes[0].name: request or SourceRequest()})


def scaled(name: str, above: str, width: int = 80) -> tuple[str, str, str, dict[str, Any]]:
    return (name, "scale", above, {"width": width, "height": 46})


@pytest.fixture
def tiny_clip(tmp_path: Path) -> Path:
    """Five frames of 32x32."""
    path = tmp_path / "tiny.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        container.mux(stream.encode(None))
    return path


def prefix(*pipelines: tuple[TypedPipeline, str]) -> list[dict[str, str]]:
    return common_prefix([Member(pipeline, source) for pipeline, source in pipelines])


def test_a_source_is_the_same_under_another_name_and_with_its_defaults_spelt_out() -> None:
    one = typed(("decode", "decode", None, SMALL))
    other = typed(("camera", "decode", None, {"source": {"size": "160x90", "rate": 30}, "pace": "none"}))
    assert key_in(one, "decode") == key_in(other, "camera")
    assert prefix((one, "decode"), (other, "camera")) == [{"decode": "decode"}, {"camera": "decode"}]


@pytest.mark.parametrize(
    ("params", "wishes"),
    [
        ({"source": {"size": "320x180"}}, {}),
        ({**SMALL, "threads": 1}, {}),
        (SMALL, {"request": SourceRequest(frames=7)}),
        (SMALL, {"request": SourceRequest(realtime=True)}),
        (SMALL, {"shared_memory_profile": SharedMemoryProfile.HUGEPAGE_2MB}),
    ],
)
def test_a_source_is_another_one_when_its_frames_are(params: dict[str, Any], wishes: dict[str, Any]) -> None:
    other = typed(("decode", "decode", None, params), **wishes)
    assert key_in(typed(("decode", "decode", None, SMALL)), "decode") != key_in(other, "decode")


def test_a_file_is_the_same_however_it_is_named(tmp_path: Path, tiny_clip: Path) -> None:
    link = tmp_path / "link.mp4"
    link.symlink_to(tiny_clip)
    written = typed(("decode", "decode", None, {"path": str(tiny_clip)}))
    given = typed(("decode", "decode", None, {}), request=SourceRequest(input=str(link)))
    assert key_in(written, "decode") == key_in(given, "decode")


def test_where_a_source_is_read_through_a_gateway_is_of_no_matter(tiny_clip: Path) -> None:
    here = typed(("d", "decode", None, {}), request=SourceRequest(input=str(tiny_clip), address=str(tiny_clip)))
    there = typed(("d", "decode", None, {}), request=SourceRequest(input=str(tiny_clip)))
    assert key_in(here, "d") == key_in(there, "d")


def test_what_is_below_is_common_as_far_as_it_is_the_same_in_all() -> None:
    mark = ("mark", "watermark", "sd", {"text": "demo"})
    one = typed(("decode", "decode", None, SMALL), scaled("sd", "decode"), mark)
    same = typed(("src", "decode", None, SMALL), scaled("small", "src"), ("m", "watermark", "small", {"text": "demo"}))
    assert prefix((one, "decode"), (same, "src")) == [
        {"decode": "decode", "sd": "sd", "mark": "mark"},
        {"src": "decode", "small": "sd", "m": "mark"},
    ]
    less = typed(("src", "decode", None, SMALL), scaled("s", "src"), ("m", "watermark", "s", {"text": "other"}))
    assert prefix((one, "decode"), (less, "src"))[1] == {"src": "decode", "s": "sd"}
    none = typed(("src", "decode", None, SMALL), scaled("s", "src", width=64))
    assert prefix((one, "decode"), (same, "src"), (none, "src"))[1] == {"src": "decode"}


def test_two_operators_that_do_the_same_are_two() -> None:
    twice = [scaled("a", "decode"), scaled("b", "decode")]
    nodes = [OperatorNode(name="decode", op="decode", params=SMALL)]
    nodes += [OperatorNode(name=n, op=op, inputs=(above,), params=p) for n, op, above, p in twice]
    nodes += [node for name in ("a", "b") for node in outlet(name)]
    double = type_pipeline(Pipeline(name="p", operators=tuple(nodes)), {"decode": SourceRequest()})
    single = typed(("decode", "decode", None, SMALL), scaled("sd", "decode"))
    assert prefix((double, "decode"), (single, "decode")) == [
        {"decode": "decode", "a": "a"},
        {"decode": "decode", "sd": "a"},
    ]


def test_only_the_source_where_frames_may_be_dropped_and_alone() -> None:
    one = typed(("decode", "decode", None, SMALL), scaled("sd", "decode"))
    hasty = typed(("decode", "decode", None, SMALL), scaled("sd", "decode"), qos=Qos(on_full=OnFull.DROP_OLDEST))
    assert prefix((one, "decode"), (hasty, "decode")) == [{"decode": "decode"}] * 2
    assert prefix((one, "decode")) == [{"decode": "decode"}]


def test_coded_streams_are_not_common() -> None:
    one, other = (typed(("decode", "decode", None, SMALL)) for _ in range(2))
    assert prefix((one, "decode"), (other, "decode")) == [{"decode": "decode"}] * 2


def test_of_two_sources_that_are_the_same_the_first_is_meant() -> None:
    nodes = [OperatorNode(name=name, op="decode", params=SMALL) for name in ("a", "b")]
    nodes += [node for name in ("a", "b") for node in outlet(name)]
    pipeline = type_pipeline(Pipeline(name="p", operators=tuple(nodes)), {n: SourceRequest() for n in ("a", "b")})
    assert list(sources_by_key(pipeline).values()) == ["a"]
