"""Text of your own: files, folders, the hub. Nothing here needs a network."""

import gzip
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkvlab.tasks import TOKENS, DataError, load, sources, text

WORDS = [f"Document {i:02d} says that word {i:02d} is its own." for i in range(40)]


def write(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "text": texts}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(texts).encode()))
    else:
        path.write_text("".join(texts), encoding="utf-8")
    return str(path)


def everything(task):
    return task.decode(task._valid), task.decode(task._train)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "odd [1]* name/a.parquet"])
def test_rows_are_documents_packed_with_a_separator(tmp_path, name, tokens):
    task = load("text", data=write(tmp_path / name, WORDS), tokens=tokens)
    valid, train = everything(task)
    assert (valid + train).split("<|endoftext|>") == [*WORDS, ""]
    assert valid.split("<|endoftext|>")[:-1] == WORDS[:4] and valid.endswith(
        "<|endoftext|>"
    )  # a tenth, whole documents
    x, y = task.batch(np.random.default_rng(0), 8, 16)
    assert x.shape == (8, 16) and max(x.max(), y.max()) < task.inputs and y.min() >= 0
    assert task.inputs == {"bpe512": 769, "bpe1024": 1281, "gpt2": 50257}.get(tokens, len(set("".join(WORDS[4:]))) + 2)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md"])
def test_a_text_file_is_one_document_with_its_line_ends(tmp_path, name):
    lines = [f"line {i}\n" for i in range(100)]
    valid, train = everything(load("text", data=write(tmp_path / name, lines)))
    assert valid + train == "".join(lines) + "<|endoftext|>"
    assert len(valid) == len("".join(lines)) // 10


def test_a_folder_is_its_files_in_order(tmp_path):
    write(tmp_path / "b.parquet", WORDS[10:20])
    write(tmp_path / "a.txt", WORDS[:1])
    write(tmp_path / "c" / "d.txt.gz", WORDS[20:21])
    write(tmp_path / "c" / "notes.pdf", ["not text"])
    valid, train = everything(load("text", data=str(tmp_path)))
    assert (valid + train).split("<|endoftext|>") == [WORDS[0], *WORDS[10:21], ""]


def test_characters_that_training_never_saw_are_not_scored(tmp_path):
    rows = ["ab☃ab" * 8, *["abba" * 20] * 5]
    task = load("text", data=write(tmp_path / "a.parquet", rows))
    assert task.inputs == 4 and task.tokens.alphabet == "ab"
    x, y = task.validation(8, 100)
    assert 3 in x and 3 not in y and (y == -100).sum() == (x[:, 1:] == 3).sum() + (y[:, -1] == -100).sum()
    assert task.decode([3]) == "\N{REPLACEMENT CHARACTER}"
    with pytest.raises(ValueError, match="☃"):
        task.encode("☃")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"PAR1 cut short", ["a.parquet", "whole"]),
        ("a.jsonl", b'{"text": "never clo', ["a.jsonl", "whole"]),
        ("a.txt", "é".encode("latin-1") * 300, ["a.txt", "UTF-8"]),
        ("a.txt.gz", gzip.compress(os.urandom(999))[:500], ["a.txt.gz"]),
        ("a.txt.gz", b"not gzip", ["a.txt.gz", "cannot be read"]),
        ("a.txt", b"short", ["a.txt", "5 characters", "200"]),
        ("a.txt", b"", ["0 characters"]),
        ("a.py", b"class A(datasets.GeneratorBasedBuilder): pass", ["a.py", "script", "never run"]),
    ],
)
def test_what_cannot_be_read_says_so_and_stays(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        load("text", data=str(path))
    assert all(w in str(error.value) for w in words)
    assert [p.name for p in tmp_path.iterdir()] == [name] and path.read_bytes() == content


def test_what_is_not_there(tmp_path):
    for data in (str(tmp_path / "no.txt"), "no.parquet", "folder/no.txt", "nothing"):
        with pytest.raises(DataError, match=r"no file or folder .*owner/name"):
            load("text", data=data)
    (tmp_path / "loader.py").write_text("")
    with pytest.raises(DataError, match=r"holds no file named .txt.*script \(.py\) is never run"):
        load("text", data=str(tmp_path))


def test_the_text_column_must_be_clear(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1], "story": ["once " * 60]}), path)
    assert "once" in everything(load("text", data=str(path)))[1]
    pyarrow.parquet.write_table(pyarrow.table({"title": ["x"], "story": ["once"]}), path)
    with pytest.raises(DataError, match=r"no column `text`.*\['title', 'story'\]"):
        load("text", data=str(path))
    pyarrow.parquet.write_table(pyarrow.table({"title": ["x"] * 3, "text": [None, "once " * 30, "then " * 30]}), path)
    assert len(everything(load("text", data=str(path)))[1]) > 150


# ---------------------------------------------------------------------------------------------------- streams
@pytest.fixture
def large(tmp_path):
    """400 documents of 50 characters, of which 5,000 characters are held at a time."""
    return write(tmp_path / "large.parquet", [f"<{i:03d}>" + "x" * 45 for i in range(400)])


def numbers(task, x):
    return [[int(n) for n in re.findall(r"<(\d{3})>", task.decode(row))] for row in x]


def test_a_stream_is_read_through_in_bounded_memory_and_never_shows_validation(large):
    task = text.own(large, "char", room=5000)
    held, seen, passed = len(task._train), [], set()
    for step in range(250):  # 250 x 4 x 50 ids: more than two passes
        x, _ = task.batch(np.random.default_rng(step), 4, 100)
        seen += numbers(task, x)
        passed |= set(numbers(task, [task._train])[0])
        assert len(task._train) == held < 5000
    assert set(numbers(task, [task._valid])[0]) == set(range(10))
    assert passed == set(range(10, 400)) and {n for row in seen for n in row} <= passed
    for row in seen:  # within a window documents follow one another: it never crosses the seam of old and new
        assert all(b == a + 1 or (a, b) == (399, 10) for a, b in pairwise(row))


def test_seek_takes_a_fresh_stream_to_the_same_place(large):
    whole, resumed = (text.own(large, "bpe512", room=5000) for _ in range(2))
    for step in range(40):
        whole.batch(np.random.default_rng(step), 4, 30)
    resumed.seek(40 * 4 * 30)
    a, b = (t.batch(np.random.default_rng(40), 4, 30) for t in (whole, resumed))
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    with pytest.raises(ValueError, match="does not run back"):
        resumed.seek(3)


def test_runs_in_step_may_share_a_stream(large):
    shared, alone = (text.own(large, "char", room=5000) for _ in range(2))
    for step in range(60):
        want = alone.batch(np.random.default_rng(step), 4, 30)
        for _ in range(3):
            shared.seek(step * 4 * 30)
            got = shared.batch(np.random.default_rng(step), 4, 30)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_only_what_is_held_is_read(tmp_path, monkeypatch):
    read = []

    def endless():
        while True:
            read.append(1)
            yield "some words and " * 20, True

    monkeypatch.setattr(text, "documents", lambda data: endless)
    task = text.own("an/endless", "char", room=30_000)
    assert len(read) <= 102
    for step in range(20):
        task.batch(np.random.default_rng(step), 10, 30)
    assert len(read) <= 102 + 6000 // 300 + 1


def test_a_stream_with_one_long_document_is_the_same_text(tmp_path):
    lines = "".join(f"{i:05d}\n" for i in range(2000))
    path = write(tmp_path / "a.txt", [lines])
    pieces = [p for p, _ in sources._text(path=sources.Path(path), size=1000)]
    assert "".join(pieces) == lines and len(pieces) == 12
    assert [end for _, end in sources._text(path=sources.Path(path), size=1000)] == [False] * 11 + [True]


# ---------------------------------------------------------------------------------------------------- hub
def test_offline_the_hub_is_given_up_at_once_with_one_message():
    """In its own process, because huggingface_hub reads HF_HUB_OFFLINE when it is imported."""
    code = "from qkvlab.tasks import load\ntry: load('text', data='nobody/nothing')\nexcept ValueError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1 and done.returncode == 0
    for part in ("'nobody/nothing'", "OfflineModeIsEnabled", "HF_HUB_OFFLINE"):
        assert part in done.stdout


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine that answers 404 to everything, and HF_HUB_OFFLINE unset."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(404)

        def log_message(self, *args):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{httpd.server_port}")
    yield SimpleNamespace(port=httpd.server_port)
    httpd.shutdown()
    httpd.server_close()


def test_without_a_network_datasets_is_not_even_asked(monkeypatch, hub):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append(a))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody answers
    with pytest.raises(DataError, match=r"'some/corpus'.*http://127.0.0.1:9 cannot be reached.*HF_HUB_OFFLINE=1"):
        load("text", data="some/corpus")
    assert asked == []


def test_a_hub_id_is_streamed_from_its_train_split(monkeypatch, hub):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or [{"text": w} for w in WORDS])
    task = load("text", data="HuggingFaceFW/fineweb:sample-10BT")
    assert asked[0] == (("HuggingFaceFW/fineweb",), {"split": "train", "streaming": True, "name": "sample-10BT"})
    assert everything(task)[1].startswith(WORDS[4])


def test_a_script_on_the_hub_is_refused_by_name(monkeypatch, hub, tmp_path):
    import datasets

    script = tmp_path / "openwebtext.py"
    script.write_text("import datasets\nclass A(datasets.GeneratorBasedBuilder): pass\n")
    real = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda id, **k: real(str(script), split="train", streaming=True))
    with pytest.raises(DataError, match=r"'old/openwebtext'.*data set script, which is never run.*Parquet"):
        load("text", data="old/openwebtext")


def test_a_short_validation_part_with_unknown_characters(tmp_path):
    """One row of x and y shares its memory: taking a target out must not change the input."""
    task = text.own(write(tmp_path / "a.txt", ["漢p字a" * 30 + "\n" + "plain english text " * 60]), "char")
    x, y = task.validation(64, 256)
    assert len(x) == 1 and x.min() >= 0 and (y[0, :-1][x[0, 1:] == task.tokens.unknown] == -100).all()
    assert ((y == -100) | (y == torch.roll(x, -1, 1)) | (torch.arange(64) == 63)).all()


def test_nothing_to_score_is_refused(tmp_path):
    with pytest.raises(DataError, match="nothing to score"):
        text.own(write(tmp_path / "a.txt", ["漢字" * 100 + "a" * 1800]), "char").validation(64, 256)


def test_a_column_of_text_that_turns_into_numbers_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello world, this is it"}\n' * 50 + '{"text": 7}\n' * 50)
    with pytest.raises(DataError, match=r"'text' holds 7, which is not text"):
        text.own(str(path), "char")
