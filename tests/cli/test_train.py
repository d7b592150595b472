import json
import os
import signal
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

from qkvlab import cli
from qkvlab.cli import main
from qkvlab.training import trainer
from qkvlab.training.runs import list_runs
from qkvlab.training.trainer import Trainer

SMALL = "--width 16 --layers 1 --heads 2 --batch 4 --device cpu --eval-every 3".split()  # noqa: SIM905


def qkvlab(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


def train(out, *args, task="reverse", steps=6):
    return qkvlab("train", task, *SMALL, "--steps", steps, "--out", out, *args)


def test_arms_are_trained_over_seeds_and_compared(tmp_path):
    done = train(tmp_path, "--variants", "qkv,identity-q:mlp=4.5", "--seeds", 3)
    assert done.exit_code == 0, done.output
    assert "identity-q:mlp=4.5" in done.output and "±" in done.output and "95 %" in done.output
    assert "accuracy" in done.output and "nats per digit" in done.output
    runs = list_runs(tmp_path)
    # arms in turn, so that an interruption leaves them equal
    assert [r.config.seed for r in runs] == [0, 0, 1, 1, 2, 2]
    assert {r.config.model.mlp for r in runs if r.config.model.variant == "identity-q"} == {4.5}
    again = train(tmp_path, "--variants", "qkv,identity-q:mlp=4.5", "--seeds", 3)
    assert again.exit_code == 0 and "6 of 6 runs were done before" in again.output
    assert done.stdout.splitlines()[:4] == again.stdout.splitlines()[:4]


def test_json_is_what_the_runs_are(tmp_path):
    done = train(tmp_path, "--variants", "qkv,tie-kv", "--seeds", 2, "--json")
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    on_disk = {str(run.folder): run for run in list_runs(tmp_path)}
    assert len(answer["runs"]) == answer["planned"] == 4
    for run in answer["runs"]:
        assert run["val_loss"] == on_disk[run["folder"]].val_loss and run["status"] == "done"
    loss = {(run["arm"], run["seed"]): run["val_loss"] for run in answer["runs"]}
    paired = [loss["tie-kv", seed] - loss["qkv", seed] for seed in (0, 1)]
    assert answer["summary"][1]["difference"] == pytest.approx(sum(paired) / 2)
    one = json.loads(train(tmp_path / "one", "--variants", "qkv", "--json").stdout)
    assert one["summary"][0]["interval"] is None


def test_the_process_gets_its_handler_of_sigterm_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    assert train(tmp_path, "--variants", "qkv").exit_code == 0 and signal.getsignal(signal.SIGTERM) is before


def test_one_seed_is_not_believed(tmp_path):
    done = train(tmp_path)
    assert done.exit_code == 0 and "One seed shows no spread" in done.output and "95 %" not in done.output


@pytest.mark.parametrize("task", ["digits", "text"])
def test_images_and_text(tmp_path, task):
    done = train(tmp_path, "--variants", "qkv", task=task, steps=2)
    assert done.exit_code == 0, done.output
    assert ("accuracy" in done.output) == (task == "digits")


def test_the_two_dimensional_term_trains_where_nothing_is_causal(tmp_path):
    assert train(tmp_path, "--variants", "tie-qk+pos2d,qkv", steps=2).exit_code == 0
    refused = train(tmp_path, "--variants", "tie-qk+pos2d", task="text", steps=2)
    assert refused.exit_code == 2 and "causal" in refused.output


def test_a_text_of_your_own_by_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("all the world is a stage and all the men " * 100)
    monkeypatch.chdir(tmp_path)
    done = train("runs", "--data", "mine.txt", "--variants", "qkv", "--context", 8, task="text", steps=2)
    assert done.exit_code == 0, done.output
    (run,) = list_runs("runs")
    assert run.config.data == str(tmp_path / "mine.txt") and run.config.model.context == 8


def test_interrupted_it_says_how_to_go_on_and_goes_on(tmp_path, monkeypatch):
    whole = json.loads(train(tmp_path / "whole", "--seeds", 2, "--json").stdout)
    step, calls = Trainer._step, 0

    def interrupted(self):
        nonlocal calls
        calls += 1
        if calls == 10:  # in the second of four runs
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    stopped = train(tmp_path / "cut", "--seeds", 2)
    assert stopped.exit_code == 1
    assert "To go on where this stopped: qkvlab" in stopped.output and "interrupted" in stopped.output
    assert "goes on from step 3" in stopped.output
    assert [len(run.records) for run in list_runs(tmp_path / "cut")] == [6, 3]
    again = json.loads(train(tmp_path / "cut", "--seeds", 2, "--json").stdout)
    assert [run["new_steps"] for run in again["runs"]] == [0, 3, 6, 6]
    assert [run["val_loss"] for run in again["runs"]] == [run["val_loss"] for run in whole["runs"]]


def test_a_log_tells_of_each_evaluation(tmp_path):
    told = train(tmp_path, "--variants", "qkv").stderr
    points = [r for r in list_runs(tmp_path)[0].records if r.val_loss is not None]
    assert told.count("qkv, seed 0: step") == len(points) > 0 and f"validation {points[-1].val_loss:.4f}" in told


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to one process: POSIX only")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_real_ctrl_c(tmp_path, sent):
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'qkvlab'; from qkvlab.cli import main; main()"]
    command += ["train", "reverse", *SMALL, "--steps", "1000000", "--variants", "qkv", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not list(tmp_path.glob("*/checkpoint.safetensors")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and "Traceback" not in err
    assert f"qkvlab train reverse {' '.join(SMALL)} --steps 1000000" in out
    (run,) = list_runs(tmp_path)
    assert run.status == "interrupted" and len(run.records) > 2


def test_one_arm_that_diverges_does_not_hide_the_others(tmp_path):
    done = train(tmp_path, "--variants", "qkv,tie-kv:lr=1e30:lr_matrix=1e30", "--seeds", 2, "--recipe", "paper")
    assert done.exit_code == 1
    assert "0 of 2" in done.output and "seed 1: diverged" in done.output
    assert [run.status for run in list_runs(tmp_path)] == ["done", "diverged"] * 2


def test_one_arm_that_does_not_fit_does_not_hide_the_others(tmp_path):
    done = train(tmp_path, "--variants", "tie-kv:width=2097152,qkv")
    assert done.exit_code == 1 and "out of memory" in done.output and "does not fit" in done.output
    assert [run.status for run in list_runs(tmp_path)] == ["done"]


def test_a_damaged_run_is_named_and_the_others_are_trained(tmp_path):
    train(tmp_path, "--seeds", 2)
    damaged = list_runs(tmp_path)[1].folder / "checkpoint.safetensors"
    damaged.write_bytes(b"no")
    again = train(tmp_path, "--seeds", 2, "--json")
    assert again.exit_code == 1
    answer = json.loads(again.stdout)
    assert [run["status"] for run in answer["runs"]] == ["done", "failed", "done", "done"]
    assert str(damaged) in answer["runs"][1]["message"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["text", "--variants", "qkx"], ["qkx", "identity-q"]),
        (["text", "--variants", ","], ["names no arm"]),
        (["text", "--variants", "qkv:mpl=3"], ["mpl=3", "mlp"]),
        (["text", "--variants", "qkv:mlp=x"], ["mlp='x'"]),
        (["nonsense"], ["nonsense", "reverse"]),
        (["text", "--recipe", "slow"], ["slow", "fast"]),
        (["text", "--steps", "0"], ["steps=0"]),
        (["text", "--seeds", "0"], ["'--seeds': 0 is not in the range"]),
        (["text", "--seeds", "1000000000"], ["'--seeds'", "1<=x<=1000"]),
        (["text", "--threads", "0"], ["'--threads': 0 is not in the range"]),
        (["text", "--threads", "99999999999"], ["'--threads'", "1<=x<=1024"]),
        (["text", "--variants", "qkv:seed=3"], ["seed=3", "is not setting=value with one of"]),
        (["text", "--variants", "qkv,qkv:task=mnist"], ["task=mnist", "is not setting=value with one of"]),
        (["text", "--width", "10000000000"], ["width=10000000000"]),
        (["text", "--device", "cuda:99999999999999"], ["cuda:99999999999999", "cpu"]),
        (["sort", "--length", "1000000"], ["length=1000000", "1024"]),
        (["text", "--data", ""], ["no file or folder ''"]),
        (["text", "--data", "~nobody-here/x.txt"], ["~nobody-here/x.txt"]),
        (["text", "--data", "x" * 5000], ["no file or folder"]),
        (["text", "--width", "30"], ["30", "heads"]),
        (["text", "--lr", "-1"], ["lr=-1"]),
        (["text", "--device", "tpu"], ["tpu", "cuda"]),
        (["text", "--device", "cuda:7"], ["cuda:7", "cpu"]),
        (["text", "--dtype", "bfloat16", "--device", "cpu"], ["bfloat16", "CUDA"]),
        (["text", "--tokens", "words"], ["words", "bpe512"]),
        (["text", "--data", "/nowhere.txt"], ["/nowhere.txt"]),
        (["mnist", "--data", "x.txt"], ["x.txt"]),
        (["swap", "--length", "5"], ["length=5"]),
        (["text", "--context", "100000000"], ["context"]),
        (["text", "--length", "6"], ["--length", "text"]),
        (["reverse", "--context", "8"], ["--context", "reverse"]),
        (["sort", "--variants", "qkv:causal=true"], ["causal=True", "sort"]),
        (["reverse", "--out", ""], ["--out is empty"]),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(tmp_path, monkeypatch, args, words):
    monkeypatch.setattr(trainer.torch.cuda, "is_available", lambda: False)
    done = qkvlab("train", "--out", tmp_path / "runs", *args)
    assert done.exit_code == 2, done.output
    assert all(word in done.output for word in words), done.output
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_betas_have_a_comma_of_their_own(tmp_path):
    done = train(tmp_path, "--variants", "qkv:betas=0.8,0.9,tie-kv", "--json")
    assert [arm["label"] for arm in json.loads(done.stdout)["summary"]] == ["qkv:betas=0.8,0.9", "tie-kv"]


def test_a_terminal_that_knows_only_ascii(tmp_path):
    ascii_only = CliRunner(charset="ascii")
    done = ascii_only.invoke(main, ["train", "reverse", *SMALL, "--steps", "6", "--seeds", "2", "--out", str(tmp_path)])
    shown = ascii_only.invoke(main, ["runs", "show", "*", "--out", str(tmp_path)])
    assert (done.exit_code, shown.exit_code) == (0, 0), (done.exception, shown.exception)


def test_what_no_verb_expected_of_the_disk_is_one_line(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("qkvlab.training.runs.list_runs", full)
    done = qkvlab("runs", "list", "--out", tmp_path)
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


def test_without_a_home_the_runs_need_a_folder(monkeypatch):
    for name in ("QKVLAB_RUNS", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does where there is no home
    assert "$QKVLAB_RUNS" in qkvlab("train", "reverse").stderr and qkvlab("train", "reverse").exit_code == 2
    assert "$QKVLAB_RUNS" in qkvlab("runs", "list").stderr


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    done = train(tmp_path / "file")
    assert done.exit_code == 2 and "cannot be written" in done.output


# ---- the front door


def test_help_imports_no_verb(tmp_path):
    code = (
        "import sys; from click.testing import CliRunner; from qkvlab.cli import main;"
        "r = CliRunner().invoke(main, ['--help']);"
        "print(r.output); print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'marimo', 'numpy', 'rich'}));"
        "print([m for m in sys.modules if m.startswith('qkvlab.cli.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-2:] == ["[]", "[]"]
    assert "train" in out and "Train variants side by side" in out


def test_every_verb_is_there_and_no_other():
    for verb in cli.VERBS:
        assert qkvlab(verb, "--help").exit_code == 0, verb
    assert qkvlab("absent").exit_code == 2
    assert qkvlab("--version").output.startswith("qkvlab, version 0")


@pytest.mark.parametrize("args", [[], ["--port", "9"]])
def test_no_verb_serves(monkeypatch, args):
    asked = []
    serve = click.Command("serve", params=[click.Option(["--port"])], callback=lambda port: asked.append(port))
    monkeypatch.setattr("qkvlab.cli.serve.command", serve)
    assert qkvlab(*args).exit_code == 0
    assert asked == [args[-1] if args else None]
