"""What `--input` means for a pipeline, and what typing finds before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.errors import BadParameters
from observatory.app.typed import source_requests, type_pipeline
from observatory.model.media import PixelFormat
from observatory.model.pipeline import OnFull, OperatorNode, Pipeline, Qos


def sources(**params: dict[str, object]) -> Pipeline:
    nodes = [OperatorNode(name=name, op="decode", params=given) for name, given in params.items()]
    return Pipeline(name="p", operators=tuple(nodes))


def test_the_only_source_takes_the_input_whatever_its_file_says() -> None:
    requests = source_requests(sources(decode={"path": "written.mp4"}), ["given.mp4"], 7)
    assert (requests["decode"].input, requests["decode"].frames) == ("given.mp4", 7)


def test_several_sources_are_named() -> None:
    requests = source_requests(sources(a={}, b={}), ["a=x.mp4", "b=y.mp4"], None)
    assert {name: r.input for name, r in requests.items()} == {"a": "x.mp4", "b": "y.mp4"}


def test_an_input_without_a_name_goes_to_the_only_source_without_a_file() -> None:
    requests = source_requests(sources(a={"path": "own.mp4"}, b={}), ["x.mp4"], None)
    assert {name: r.input for name, r in requests.items()} == {"a": None, "b": "x.mp4"}


@pytest.mark.parametrize("given", [["x.mp4"], ["a=x.mp4", "y.mp4", "z.mp4"], ["nobody=x.mp4"]])
def test_ambiguous_inputs_are_refused_with_the_names(given: list[str]) -> None:
    with pytest.raises(BadParameters, match="2 sources: a, b") as refused:
        source_requests(sources(a={}, b={}), given, None)
    assert refused.value.mend is not None
    assert "--input a=" in refused.value.mend


@pytest.mark.parametrize("given", [["x.mp4", "y.mp4"], ["decode=x.mp4", "decode=y.mp4"], ["decode=x.mp4", "y.mp4"]])
def test_two_inputs_for_one_source_are_refused(given: list[str]) -> None:
    with pytest.raises(BadParameters, match=r"decode has one already: x\.mp4"):
        source_requests(sources(decode={}), given, None)


def test_a_path_with_an_equals_sign_is_a_path() -> None:
    assert source_requests(sources(decode={}), ["take=3.mp4"], None)["decode"].input == "take=3.mp4"


def ladder(folder: Path, on_full: OnFull = OnFull.BLOCK) -> Pipeline:
    return Pipeline(
        name="p",
        qos=Qos(on_full=on_full),
        operators=(
            OperatorNode(name="d", op="decode", params={"source": {"size": "640x360"}}),
            OperatorNode(name="s", op="scale", inputs=("d",), params={"width": 320, "height": 180}),
            OperatorNode(name="e", op="encode", inputs=("s",), params={"codec": "libx264"}),
            OperatorNode(name="m", op="mux", inputs=("e",), params={"path": str(folder / "o.mp4")}),
        ),
    )


def test_formats_travel_along_the_edges(tmp_path: Path) -> None:
    pipeline = ladder(tmp_path)
    typed = type_pipeline(pipeline, source_requests(pipeline, [], None))
    by_name = {edge.name: edge for edge in typed.edges}
    assert list(by_name) == ["d->s", "s->e", "e->m"]
    scaled = by_name["s->e"].format
    assert scaled.kind == "video"
    assert (scaled.width, scaled.height, scaled.pixel_format) == (320, 180, PixelFormat.YUV420P)
    assert by_name["d->s"].bytes_per_frame == 640 * 360 * 3 // 2
    assert by_name["e->m"].format.kind == "packet"
    assert typed.operators["m"].sources == ("d",)
    assert typed.stream_name("d") == "p"


def test_only_raw_frames_may_be_dropped(tmp_path: Path) -> None:
    pipeline = ladder(tmp_path, OnFull.DROP_OLDEST)
    typed = type_pipeline(pipeline, source_requests(pipeline, [], None))
    assert {edge.name: edge.policy.value for edge in typed.edges} == {
        "d->s": "drop_oldest",
        "s->e": "drop_oldest",
        "e->m": "block",
    }


def test_an_output_may_not_be_the_input(tmp_path: Path) -> None:
    import av

    clip = tmp_path / "o.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for index in range(3):
            frame = av.VideoFrame(64, 64, "yuv420p")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    before = clip.read_bytes()
    pipeline = ladder(tmp_path)
    with pytest.raises(BadParameters, match="also the input of d"):
        type_pipeline(pipeline, source_requests(pipeline, [str(clip)], None))
    assert clip.read_bytes() == before


def two_packages(first: str, second: str) -> Pipeline:
    encode = {"codec": "libx264", "preset": "ultrafast", "keyframe_seconds": 4}
    return Pipeline(
        name="p",
        operators=(
            OperatorNode(name="d", op="decode", params={"source": {"size": "64x48"}}),
            OperatorNode(name="e", op="encode", inputs=("d",), params=encode),
            OperatorNode(name="a", op="package", inputs=("e",), params={"folder": first}),
            OperatorNode(name="b", op="package", inputs=("e",), params={"folder": second}),
        ),
    )


def test_two_packages_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "live")
    pipeline = two_packages(f"{tmp_path}/live", f"{tmp_path}/link")
    with pytest.raises(BadParameters, match=r"b: .*link is also the output of a") as refused:
        type_pipeline(pipeline, source_requests(pipeline, [], None))
    assert refused.value.mend == "give every output a folder of its own"
    assert not (tmp_path / "live").exists()

    apart = two_packages(f"{tmp_path}/live", f"{tmp_path}/other")
    assert set(type_pipeline(apart, source_requests(apart, [], None)).operators) == {"d", "e", "a", "b"}
