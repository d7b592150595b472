"""The Jupyter twins: current, clean, and each run without a network in a real kernel with its gates opened."""

import ast
import inspect
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.util import run_sync

from qkvlab.course import jupyter
from qkvlab.course.exercises import exercises

FOLDER = Path(__file__).parents[2] / "notebooks"
LABS = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))


def twin(name):
    return FOLDER / "jupyter" / f"{name}.ipynb"


@pytest.mark.parametrize("name", LABS)
def test_is_what_its_lab_makes(name):
    fresh = jupyter.convert(FOLDER / f"{name}.py")
    found = jupyter.state(twin(name), fresh)
    assert found == "current", (
        f"{twin(name).name} is {found}: `qkvlab jupyter` makes it anew (an edited one: delete it first)"
    )


def test_every_twin_has_its_lab():
    assert sorted(path.stem for path in (FOLDER / "jupyter").iterdir() if path.suffix == ".ipynb") == LABS


def faults(text):
    """What must not be in a notebook that is kept."""
    notebook = json.loads(text)
    nbformat.validate(notebook)
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "no kernelspec"
    if "widgets" in notebook["metadata"]:
        yield "widget state"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and (cell["outputs"] or cell["execution_count"]):
            yield "outputs"
    for found in re.findall(
        r"(?<![\w.:/])/(?:home|root|Users|work|tmp|usr|opt|mnt)/|\b[A-Z]:\\\\|file://|localhost|127\.0\.0\.1", text
    ):
        yield f"a path of a machine: {found}"


@pytest.mark.parametrize("name", LABS)
def test_carries_nothing_but_its_cells(name):
    assert list(faults(twin(name).read_text(encoding="utf-8"))) == []


def test_what_must_not_be_kept_is_seen():
    notebook = json.loads(twin(LABS[0]).read_text(encoding="utf-8"))
    code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "in /home/me/x"}]
    notebook["metadata"] |= {"widgets": {}, "kernelspec": {"name": "other", "display_name": "other"}}
    found = list(faults(json.dumps(notebook)))
    assert found == ["no kernelspec", "widget state", "outputs", "a path of a machine: /home/"]


# ---------------------------------------------------------------- alive


def beside():
    """What runs in the kernel beside the page: no network, and what the page says."""
    import html
    import re
    import socket

    plain = socket.socket.connect, socket.getaddrinfo

    def connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests have no network: refused {address}")
        return plain[0](self, address)

    def getaddrinfo(host, *rest, **more):
        if host not in (None, "127.0.0.1", "::1", "localhost", socket.gethostname()):
            raise socket.gaierror(socket.EAI_NONAME, f"tests have no network: refused to look up {host}")
        return plain[1](host, *rest, **more)

    socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo

    def said():
        from qkvlab.show import twin

        shown = " ".join(cell.view.html for cell in twin.page.cells.values() if cell.view)
        shown = re.sub(r'<[^>]*aria-label="([^"]*)"[^>]*>', r" \1 ", shown)
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", shown)))

    return said


class Page:
    """A twin whose cells have all been run, in a kernel of its own."""

    def __init__(self, name, folder):
        notebook = nbformat.read(twin(name), as_version=4)
        self.client = NotebookClient(
            notebook, timeout=120, shutdown_kernel="immediate", resources={"metadata": {"path": str(folder)}}
        )
        self.client.create_kernel_manager()
        run_sync(self.client.async_start_new_kernel)()
        run_sync(self.client.async_start_new_kernel_client)()
        self.do(inspect.getsource(beside) + "\n_said = beside()")
        for number, cell in enumerate(notebook.cells):
            self.client.execute_cell(cell, number)

    def do(self, code, value="None"):
        """Run code beside the page, as no cell of it; the value of an expression after that."""
        ask = run_sync(self.client.kc.execute_interactive)
        reply = ask(code, silent=True, user_expressions={"value": value}, timeout=120, output_hook=lambda message: None)
        answer = reply["content"]
        assert answer["status"] == "ok", "\n".join(answer["traceback"])
        answer = answer["user_expressions"]["value"]
        assert answer["status"] == "ok", "\n".join(answer["traceback"])
        return ast.literal_eval(answer["data"]["text/plain"])

    def get(self, value):
        return self.do("", value)

    def move(self, **controls):
        """Set controls; of a choice, by the option or by the value that it stands for."""
        for name, value in controls.items():
            shown = f"{{v: k for k, v in getattr({name}, 'options', {{}}).items()}}.get({value!r}, {value!r})"
            self.do(f"twin.move({name!r}, {shown})")

    def says(self):
        return self.get("_said()")

    def answer(self, **named):
        """Give each exercise a wrong answer and the right one; what the page says has to follow."""
        for name, key in named.items():
            exercise = exercises()[key]
            before = self.says()
            for given, word in ((exercise.wrong[0][0], "Not yet"), (exercise.answer, "Right")):
                self.do(f"twin.move('{name}.{key}', {given!r})")
                assert self.get(f"{name}.value") == {key: given}
                assert self.says().count(f"{word}.") > before.count(f"{word}."), (key, given)
        assert "Not tried yet" not in self.says()

    def end(self):
        """Every gate is open: no cell waits, has stopped or failed."""
        assert self.get("twin.waiting()") == {}
        states = "{c.impl.code.strip()[:60]: c.state for c in twin.page.cells.values() if c.state != 'ran'}"
        assert self.get(states) == {}
        assert (
            self.get("[c.view.html for c in twin.page.cells.values() if c.view and 'twin-error' in c.view.html]") == []
        )


@pytest.fixture
def open_twin(tmp_path, monkeypatch):
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    pages = []

    def start(name):
        page = Page.__new__(Page)
        pages.append(page)
        page.__init__(name, tmp_path)
        return page

    yield start
    for page in pages:
        run_sync(page.client._async_cleanup_kernel)()


def test_00_answers_a_guess_follows_a_slider_and_checks_the_machine(open_twin):
    page = open_twin("00_start_here")
    assert page.get("difference < 1e-12 and guess.value is None")
    assert "Choose one." in page.says() and "At temperature 1 the largest" in page.says()
    page.move(guess="A has none")
    assert "You had one chance in two" in page.says()
    page.move(guess="I cannot tell", temperature=0.3)
    said = page.says()
    assert "Nobody can." in said and "Choose one." not in said and "At temperature 0.3 the largest" in said
    page.move(look=True)
    assert page.get("milliseconds > 0 and {'Python', 'Data'} <= {check.name for check in checks}")
    assert "a training step" in page.says()
    assert page.get("look.value") is False
    page.end()


def test_01_follows_its_head_counts_the_freedom_and_answers(open_twin):
    page = open_twin("01_three_projections")
    page.move(layer=4, head=9)
    assert page.get("float(np.abs(A - MODEL.sentences[1].maps[3, 8]).max())") < 7e-4
    page.move(temperature=5.0)
    assert page.get("float(tempered.max(axis=1).mean() / A.max(axis=1).mean())") < 0.8
    page.move(mask=True)
    assert page.get("bool((np.triu(A, 1) == 0).all())") and "You switched the mask on" in page.says()
    page.move(place="alone")
    assert page.get("holds") is False and "only the pair" in page.says().lower()
    page.move(place="inside", log_kappa=6)
    assert page.get("holds") is True
    assert page.get("'dead' in globals()") is False and "Make your prediction first" in page.says()
    page.move(guess=page.get("list(freedom)[2]"), small=3)
    assert page.get("dead") == 9 and "9 of 72" in page.says()
    page.move(heads=16, of_head=64)
    assert page.get("price") == 2 * 1024 * 64 and f"{2 * 1024 * 64:,}" in page.says()
    page.answer(order="01-order", undo="01-undo", left="01-freedom", parameters="01-parameters")
    assert "You predicted" in page.says()
    page.end()


def test_02_proves_breaks_and_answers(open_twin):
    page = open_twin("02_change_of_basis")
    assert "5 more lines" in page.says()
    page.move(line=6, which="W_K", rope=True, heads="4")
    assert "line 6 is the lemma" in page.says() and page.get("error") < 1e-12
    assert page.get("float(np.abs(new_W['W_K'] - np.eye(8)).max())") < 1e-12
    page.move(forgotten="W_V")
    assert page.get("error") > 0.05 and "The maps still agree" in page.says()
    page.move(forgotten="none", stretch=8.0)
    assert page.get("error") < 1e-12 and 1e-11 < page.get("float(here['float64'])") < 1e-6
    page.move(precision="bfloat16", layer=4, head=2)
    assert "Layer 4, head 2." in page.says()
    page.move(guess="rounding: 12 digits agree")
    page.answer(
        side="02-which-side", layout="02-torch-layout", digits="02-digits-left", bias="02-bias", surgery="02-surgery"
    )
    assert "and so it is" in page.says()
    page.end()


def test_08_trains_pauses_measures_and_answers(open_twin):
    page = open_twin("08_train_without_queries")
    page.move(d_check=768, sigma_check="0.02, as in GPT-2")
    assert "½ fits" in page.says() and page.get("abs(with_q[0] - 0.02 * 768**0.5)") < 0.04
    page.move(heads=3)
    assert "These settings do not fit together" in page.says()
    page.do("twin.move('models.m2')")
    page.move(heads=2, width=16, steps=40, prompt="O Romeo")
    assert page.get("[c.steps for c in configs]") == [40, 40, 40] and page.get("problem") == ""
    assert "do not fit together" not in page.says()
    # the panel's own buttons are the page's script; this is what they send
    page.do("panel._receive(panel, {'command': 'play'}, [])")
    until = "import time\nfor _ in range(600):\n    if {}: break\n    time.sleep(0.1)"
    page.do(until.format("panel.status == 'done'"))
    assert page.get("panel.status") == "done" and page.get("len(panel.validation)") > 0
    assert "appears here when a run pauses" in page.says()
    page.do("panel.set_state({'heard': panel.moment})")  # as the page's script echoes it
    said = page.says()
    assert said.count("after 40 steps") == 3 and "O Romeo" in said
    page.do("_cost = experiments.cost\nexperiments.cost = lambda *a, **k: _cost(*a, **k | {'rounds': 1, 'steps': 1})")
    page.move(measure_here=True)
    assert page.get("{arm for arm in here} == set(run.arms)")
    page.move(guess=page.get("GUESSES[1]"))
    page.answer(ask_saved="08-saved", ask_mlp="08-mlp", ask_scale="08-scale", ask_paired="08-paired")
    assert "You predicted" in page.says() or "and so it is" in page.says()
    page.end()
