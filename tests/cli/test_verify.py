"""`qkvlab verify` says yes when the statements hold, and no when one breaks or a control is let through."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from qkvlab.cli import main, verify


def run(*args):
    done = CliRunner().invoke(main, ["verify", *args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_every_statement_holds_and_every_control_fails():
    done = run("--json")
    rows = json.loads(done.output)
    assert done.exit_code == 0
    assert all(row["ok"] for row in rows)
    assert {row["control"] for row in rows} == {True, False}
    for row in rows:
        assert row["statement"] and row["source"]
        # a statement is rounding and nothing else; a control is off by something one can see
        assert row["error"] < 1e-11 if not row["control"] else row["error"] > 0.1, row


def test_the_table_shows_each_verdict():
    done = run()
    assert done.exit_code == 0
    assert done.output.count("exact") == len(verify.STATEMENTS)
    assert f"{len(verify.STATEMENTS)} of {len(verify.STATEMENTS)} statements hold" in " ".join(done.output.split())
    assert f"{len(verify.CONTROLS)} of {len(verify.CONTROLS)} controls fail" in " ".join(done.output.split())


def test_a_wrong_lemma_is_noticed(monkeypatch):
    monkeypatch.setattr(verify.gauge, "read", lambda theta, weight: np.linalg.solve(np.transpose(theta), weight))
    done = run()
    assert done.exit_code == 1
    assert "FAILS" in done.output


def test_one_broken_statement_alone_is_noticed(monkeypatch):
    broken = (*verify.STATEMENTS[0][:2], lambda: 2e-3, 1e-13)
    monkeypatch.setattr(verify, "STATEMENTS", (broken, *verify.STATEMENTS[1:]))
    done = run("--json")
    assert done.exit_code == 1
    assert [row["verdict"] for row in json.loads(done.output) if not row["ok"]] == ["FAILS"]


def test_a_check_that_sees_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr(verify, "relative_error", lambda found, wanted: 0.0)
    done = run("--json")
    assert done.exit_code == 1
    wrong = [row["verdict"] for row in json.loads(done.output) if not row["ok"]]
    assert wrong == ["PASSES, and must not"] * len(verify.CONTROLS)


@pytest.mark.parametrize("error", [float("inf"), float("nan")])
def test_an_error_that_is_no_number_does_not_hold(error):
    assert not verify.Result("", "", error, 1e-12).ok
    assert not verify.Result("", "", error, 1e-3, control=True).ok
