"""Pipeline files: what is read, and that every mistake names file, line and mend."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.documents import MAX_BYTES, read_document, read_text
from observatory.model.pipeline import OnFull, Priority, SharedMemoryProfile
from scheduler.errors import BadSpec
from scheduler.specs.read import read_spec
from scheduler.specs.schema import schema, text

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "observatory/app/pipelines").glob("*.yaml"))
HEAD = "apiVersion: media.observatory/v1\nkind: MediaPipeline\nmetadata: {name: test}\nspec:\n  operators:\n"

WHOLE = """\
apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: abr-ladder}
spec:
  operators:
    - {name: package,  op: mux,       inputs: [enc-hd], params: {path: out.mp4}}
    - {name: decode,   op: decode}
    - {name: hd,       op: scale,     inputs: [decode], params: {width: 1280, height: 720}}
    - name: mark
      op: watermark
      inputs: [hd]
      device: n0/gpu0
      params:
        text: demo
        corners: [left,
          right]
    - {name: enc-hd,   op: encode,    inputs: [mark],   params: {codec: libx264, bitrate: 3M, audio: no}}
  qos: {deadline_seconds: 0.2, frames_per_second: 30, priority: realtime, on_full: drop_oldest}
  topologyConstraints:
    - {type: NVLink_Domain, members: [decode, enc-hd]}
    - {type: CXL_Memory_Node, members: [mark], weight: 80}
  dataLocalityHints: [{operators: [decode, hd], prefer: same-device}]
  sharedMemoryProfile: hugepage-2mb
"""

POD_GROUP = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: ladder, namespace: media, labels: {team: video}}
spec:
  minMember: 2
  queue: default
  operators:
    - {name: decode, op: decode}
    - {name: out, op: mux, inputs: [decode]}
  topologyConstraints: [{type: NVLink_Domain, members: [decode, out]}]
  dataLocalityHints: [{operators: [decode, out], prefer: same-numa}]
  sharedMemoryProfile: default
"""


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "p.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_field_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    pipeline, source = read_spec(path)
    assert [o.name for o in pipeline.operators] == ["decode", "hd", "mark", "enc-hd", "package"]
    mark = pipeline.operator("mark")
    assert (mark.op, mark.inputs, mark.device, mark.line) == ("watermark", ("hd",), "n0/gpu0", 9)
    assert pipeline.operator("enc-hd").params == {"codec": "libx264", "bitrate": "3M", "audio": "no"}
    assert pipeline.qos.priority is Priority.REALTIME
    assert pipeline.qos.on_full is OnFull.DROP_OLDEST
    hard, soft = pipeline.topology_constraints
    assert (hard.weight, soft.weight) == (None, 80)
    assert pipeline.locality_hints[0].operators == ("decode", "hd")
    assert pipeline.shared_memory_profile is SharedMemoryProfile.HUGEPAGE_2MB
    assert pipeline.source_file == str(path)
    assert source.line_of("mark") == 9
    assert source.line_of("mark", "text") == 14
    assert source.line_of("mark", "corners", 1) == 16
    assert source.line_of("mark", "colour") == 13  # not written: the line of params
    assert source.line_of("decode", "codec") == 7  # no params at all: the operator's
    assert source.line_of("nobody") is None
    error = source.error("mark", "text", message="too long", mend="shorten it")
    assert (str(error), error.mend) == (f"{path}:14: too long", "shorten it")


def test_a_pod_group_is_read_into_the_same_model(tmp_path: Path) -> None:
    pipeline, source = read_spec(written(tmp_path, POD_GROUP))
    assert [o.name for o in pipeline.operators] == ["decode", "out"]
    assert pipeline.topology_constraints[0].type == "NVLink_Domain"
    assert pipeline.locality_hints[0].prefer == "same-numa"
    assert source.warnings == ("spec.minMember, spec.queue: for the cluster's gang scheduler; not used here",)


BAD: dict[str, tuple[str | bytes, int | None, str, str | None]] = {
    "cycle": (
        HEAD + "    - {name: a, op: s, inputs: [b]}\n    - {name: b, op: s, inputs: [a]}\n",
        6, "cycle: a -> b -> a", "remove one",
    ),
    "cycle behind a tail": (
        HEAD + "    - {name: s, op: s}\n    - {name: t, op: s, inputs: [c]}\n    - {name: c, op: s, inputs: [s, a]}\n"
        "    - {name: b, op: s, inputs: [c]}\n    - {name: a, op: s, inputs: [b]}\n",
        8, "cycle: c -> b -> a -> c", None,
    ),
    "unknown input": (
        HEAD + "    - {name: decode, op: d}\n    - {name: b, op: s,\n       inputs: [decoed]}\n",
        8, "no operator 'decoed'", "did you mean decode?",
    ),
    "itself": (HEAD + "    - {name: a, op: s, inputs: [a]}\n", 6, "takes its own output", None),
    "input twice": (HEAD + "    - {name: a, op: d}\n    - {name: b, op: s, inputs: [a, a]}\n", 7, "'a' twice", None),
    "name twice": (HEAD + "    - {name: a, op: d}\n    - {name: a, op: d}\n", 7, "first on line 6", "rename"),
    "unknown key": (HEAD + "    - name: a\n      op: d\n      inputz: []\n", 8, "operators[0].inputz", "mean inputs?"),
    "unknown top key": (HEAD + "    - {name: a, op: d}\n  topologyConstraint: []\n", 7, "", "topologyConstraints?"),
    "no op": (HEAD + "    - {name: a}\n", 6, "op is missing", "add op"),
    "no operators": (HEAD, 5, "must be a list", None),
    "empty operators": (HEAD.replace("operators:\n", "operators: []\n"), 5, "at least 1 item", None),
    "name is a number": (HEAD + "    - {name: 12, op: d}\n", 6, "must be text, not 12", None),
    "name with a space": (HEAD + "    - {name: a b, op: d}\n", 6, "'a b'", "form"),
    "params are a list": (HEAD + "    - {name: a, op: d, params: [1]}\n", 6, "mapping", None),
    "device": (HEAD + "    - {name: a, op: d, device: gpu0}\n", 6, "'gpu0'", "form"),
    "deadline": (HEAD + "    - {name: a, op: d}\n  qos: {deadline_seconds: -1}\n", 7, "greater than 0", None),
    "deadline as text": (HEAD + "    - {name: a, op: d}\n  qos: {deadline_seconds: '1'}\n", 7, "be a number", None),
    "on_full": (HEAD + "    - {name: a, op: d}\n  qos:\n    on_full: blok\n", 8, "'blok'", "did you mean block?"),
    "constraint type": (
        HEAD + "    - {name: a, op: d}\n  topologyConstraints:\n    - {type: nvlink, members: [a]}\n",
        8, "'nvlink'", "did you mean NVLink_Domain?",
    ),
    "constraint member": (
        HEAD + "    - {name: abc, op: d}\n  topologyConstraints:\n    - {type: Node, members: [abd]}\n",
        8, "no operator 'abd'", "did you mean abc?",
    ),
    "kind without value": (
        HEAD + "    - {name: a, op: d}\n  topologyConstraints:\n    - {type: Device_Kind, members: [a]}\n",
        8, "without a value", "add value",
    ),
    "hint member": (
        HEAD + "    - {name: a, op: d}\n  dataLocalityHints: [{operators: [a, b], prefer: same-node}]\n",
        7, "no operator 'b'", None,
    ),
    "hint twice": (
        HEAD + "    - {name: a, op: d}\n  dataLocalityHints: [{operators: [a, a], prefer: same-node}]\n",
        7, "twice", None,
    ),
    "hint alone": (
        HEAD + "    - {name: a, op: d}\n  dataLocalityHints: [{operators: [a], prefer: same-node}]\n",
        7, "at least 2 items", None,
    ),
    "no kind": ("apiVersion: media.observatory/v1\n", 1, "kind is missing", "MediaPipeline"),
    "no version": ("kind: MediaPipeline\n", 1, "apiVersion is missing", "media.observatory/v1"),
    "other kind": ("apiVersion: v1\nkind: MediaPipelin\n", 2, "no pipeline", "did you mean MediaPipeline?"),
    "other version": ("apiVersion: media.observatory/v2\nkind: MediaPipeline\n", 1, "v2", "media.observatory/v1"),
    "list": ("- 1\n- 2\n", 1, "holds a list", "apiVersion"),
    "one word": ("hello\n", 1, "holds one value", "apiVersion"),
    "empty": ("", 1, "is empty", None),
    "only a comment": ("# nothing\n", 1, "is empty", None),
    "null": ("~\n", 1, "is empty", None),
    "no yaml": ("{{{:::\n", 1, "", None),
    "open bracket": ("a: [1, 2\nb: 3\n", 2, "is not YAML", "brackets"),
    "tab": ("a:\n\tb: 1\n", 2, "is not YAML", "spaces, not tabs"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "second document", "one document"),
    "key twice": ("a: 1\nb: 1\na: 2\n", 3, "a is written twice, first on line 1", None),
    "key is a list": ("[a]: 1\n", 1, "a key must be a word", None),
    "itself by alias": ("a: &x [*x]\n", 1, "no anchor", None),
    "unknown alias": ("a: *x\n", 1, "", None),
    "python tag": ("a: !!python/object/apply:os.system [ls]\n", 1, "tag", None),
    "binary tag": ("a: !!binary AA==\n", 1, "tag", None),
    "infinite": ("a: 1\nb: .inf\n", 2, "not a finite number", None),
    "not a number": ("a: .NaN\n", 1, "not a finite number", None),
    "deep but known to the parser": ("[" * 100, 1, "nests deeper than 64", None),
    "huge float": ("a: 1e999\n", 1, "too large", None),
    "huge integer": ("a: " + "9" * 5000 + "\n", 1, "5,000 digits", None),
    "deep": ("[" * 100_000, 1, "nest", None),
    "bomb": (
        "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)),
        7, "aliases expanded", "fewer aliases",
    ),
    "media": (b"\x00\x00\x00\x20ftypisom\xff\xfe", 1, "not UTF-8", "--input"),
    "control characters": ("a: \x01\n", None, "is not YAML", None),
    "UTF-16": ("a: 1\n".encode("utf-16"), 1, "not UTF-8", None),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_names_file_line_and_mend(case: str, tmp_path: Path) -> None:
    content, line, words, mend = BAD[case]
    path = written(tmp_path, content)
    with pytest.raises(BadSpec) as caught:
        read_spec(path)
    error = caught.value
    assert error.exit_code == 2
    assert error.file == str(path)
    assert error.line == line
    assert words in error.message
    if mend is not None:
        assert error.mend is not None
        assert mend in error.mend


def test_of_several_mistakes_the_first_in_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r":7: spec\.operators\[0\]\.oq: there is no such key"):
        read_spec(written(tmp_path, HEAD + "    - name: a\n      oq: d\n  qos: {on_full: 1}\n"))


def test_a_pipe_is_read_to_its_end_and_a_device_is_refused(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # as a shell's <(...)
    os.write(writing, WHOLE.encode())
    os.close(writing)
    assert read_spec(f"/dev/fd/{reading}")[0].name == "abr-ladder"
    os.close(reading)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_text(WHOLE))
    writer.start()
    assert read_spec(fifo)[0].name == "abr-ladder"
    writer.join()
    with pytest.raises(BadSpec, match="/dev/zero: cannot be read: it is a device, not a file"):
        read_spec("/dev/zero")
    with pytest.raises(BadSpec, match="it is a pipe, not a file"):
        read_text(fifo, BadSpec, pipes=False)


def test_a_number_of_very_many_digits_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(f"{HEAD}    - {{name: 0x{'f' * 4000}, op: decode}}\n")
    with pytest.raises(BadSpec, match="name must be text, not a number of very many digits") as caught:
        read_spec(file)
    assert caught.value.line == 6


@pytest.mark.parametrize(("name", "words"), [("none.yaml", "there is no such file"), ("", "is a folder")])
def test_what_is_no_file(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=words):
        read_spec(tmp_path / name)


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="larger than 10 MB"):
        read_spec(written(tmp_path, b"a" * (MAX_BYTES + 1)))


def test_a_long_cycle_is_drawn_short(tmp_path: Path) -> None:
    lines = "".join(f"    - {{name: o{i}, op: s, inputs: [o{(i - 1) % 500}]}}\n" for i in range(500))
    with pytest.raises(BadSpec, match=r"o0 -> o1 -> .* \(489 more\) -> .*o499 -> o0$"):
        read_spec(written(tmp_path, HEAD + lines))


def test_scalars_follow_yaml_1_2(tmp_path: Path) -> None:
    values = "[64e9, 1:30, on, no, 0x10, 0o17, 010, 1_000, .5, 2024-01-01, !!str 5, '5', ~, true, +1, -1.5E-3, 3M]"
    document = read_document(written(tmp_path, f"a: {values}\n"), BadSpec)
    expected: list[Any] = [64e9, "1:30", "on", "no", 16, 15, 10, "1_000", 0.5, "2024-01-01", "5", "5", None, True, 1]
    assert document.value["a"] == [*expected, -1.5e-3, "3M"]


def test_merge_keys_and_aliases_work_and_keep_their_lines(tmp_path: Path) -> None:
    text = (
        "base: &base\n  op: encode\n  preset: fast\nmine:\n  <<: *base\n  preset: slow\nboth: {<<: [*base, {x: 1}]}\n"
    )
    document = read_document(written(tmp_path, text), BadSpec)
    assert document.value["mine"] == {"op": "encode", "preset": "slow"}
    assert document.value["both"] == {"op": "encode", "preset": "fast", "x": 1}
    assert (document.line_of(("mine", "op")), document.line_of(("mine", "preset"))) == (2, 6)


def test_the_order_is_topological_and_keeps_the_files_order_where_it_can(tmp_path: Path) -> None:
    lines = "".join(
        f"    - {{name: {n}, op: x, inputs: [{i}]}}\n" for n, i in [("z", "y"), ("b", ""), ("y", ""), ("a", "b")]
    )
    pipeline, _ = read_spec(written(tmp_path, HEAD + lines))
    assert [o.name for o in pipeline.operators] == ["b", "y", "z", "a"]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40))
def test_any_dag_in_any_order_comes_back_sorted(seed: int, size: int) -> None:
    import random
    import tempfile

    rng = random.Random(seed)
    inputs = {i: sorted(rng.sample(range(i), rng.randint(0, min(i, 3)))) for i in range(size)}
    order = list(range(size))
    rng.shuffle(order)
    operators = [{"name": f"o{i}", "op": "x", "inputs": [f"o{j}" for j in inputs[i]]} for i in order]
    document = {
        "apiVersion": "media.observatory/v1",
        "kind": "MediaPipeline",
        "metadata": {"name": "random"},
        "spec": {"operators": operators},
    }
    with tempfile.TemporaryDirectory() as folder:  # JSON is YAML
        pipeline, _ = read_spec(written(Path(folder), json.dumps(document)))
    place = {o.name: i for i, o in enumerate(pipeline.operators)}
    assert len(place) == size
    assert all(place[f"o{j}"] < place[f"o{i}"] for i in inputs for j in inputs[i])


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_give_an_error_of_ours(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.raises(BadSpec):
        read_spec(written(Path(folder), content))


def test_the_published_schema_is_up_to_date() -> None:
    published = ROOT / "docs/reference/media-pipeline-spec.schema.json"
    assert published.read_text() == text(), "python -m scheduler.specs.schema > docs/reference/..."


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_shipped_pipelines_are_read_and_fit_the_schema(path: Path) -> None:
    pipeline, _ = read_spec(path)
    assert pipeline.name == path.stem
    jsonschema.validate(read_document(path, BadSpec).value, schema())


def test_examples_fit_the_schema_and_mistakes_do_not(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for example in (WHOLE, POD_GROUP):
        jsonschema.validate(read_document(written(tmp_path, example), BadSpec).value, schema())
    for case in ("unknown key", "no op", "name is a number", "deadline", "on_full", "hint alone", "other version"):
        document = read_document(written(tmp_path, BAD[case][0]), BadSpec)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document.value, schema())
