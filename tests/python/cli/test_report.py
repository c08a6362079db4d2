"""``fairshard report``: a page of generated logs, opened in a real browser."""

import base64
import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from support.browser import browser, opened_page
from support.run_logs import memory_line, run_line, run_lines, step_line, waits_line, write_log

PROGRAM = Path(__file__).parents[3] / "build/bin/fairshard"
SECTIONS = ["Runs", "Loss", "Speed", "Waits", "Memory", "Bytes on the wire", "Events"]
# How many different colours a plot has: a plot without its curves has fewer than eight. It is read from a copy,
# because the browser grumbles about canvases that are read.
INK = """canvas => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 200) colours.add((data[i] >> 3) * 4096 + (data[i + 1] >> 3) * 64 + (data[i + 2] >> 3));
  return colours.size;
}"""


def report(*logs, output=None, folder=None):
    output = output or folder / "report.html"
    return subprocess.run([PROGRAM, "report", *logs, "-o", output], capture_output=True, text=True, timeout=60), output


def make_page(folder, *runs):
    """The page of lists of lines, one for each run."""
    logs = [write_log(folder / f"{number}.jsonl", lines) for number, lines in enumerate(runs)]
    result, page = report(*logs, folder=folder)
    assert result.returncode == 0, result.stderr
    return page


def data_of(page):
    """What the page's script is given."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)[1])


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory):
    offloaded = run_lines("paged", ranks=4, shard="gradients", offload=4, seed=2)
    for line in offloaded:
        if line["kind"] == "memory":
            line["bytes"]["host_weights"] = 120_000_000
    return make_page(
        tmp_path_factory.mktemp("report"),
        run_lines("plain", shard="none", speed=0.8),
        run_lines("sharded", shard="gradients", seed=1),
        offloaded,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_plots_are_drawn_and_fit(chromium, three_runs, width, scheme):
    with opened_page(chromium, three_runs, width=width, color_scheme=scheme) as (page, troubles):
        assert [heading.inner_text() for heading in page.query_selector_all("h2")] == SECTIONS
        plots = page.query_selector_all("canvas")
        assert len(plots) == 5 + 3
        assert all(plot.evaluate(INK) > 8 for plot in plots)
        assert all(plot.get_attribute("aria-label") for plot in plots)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        brightness = page.evaluate(
            "getComputedStyle(document.documentElement).backgroundColor.match(/[0-9]+/g).map(Number)"
        )
        assert (max(brightness) < 60) == (scheme == "dark")
        page.get_by_label("logarithmic").check()
        page.get_by_label("running mean").uncheck()
        assert all(plot.evaluate(INK) > 8 for plot in page.query_selector_all("canvas"))
        assert troubles == []


def test_the_table_compares_what_differs(chromium, three_runs):
    with opened_page(chromium, three_runs) as (page, _):
        rows = {
            row.query_selector("th").inner_text(): [cell.inner_text() for cell in row.query_selector_all("td")]
            for row in page.query_selector_all("#comparison tbody tr")
        }
        assert rows["shard"] == ["none", "gradients", "gradients"]
        assert rows["offload"] == ["–", "–", "4"]  # noqa: RUF001
        assert "lr" not in rows and "batch" not in rows
        assert rows["ranks"] == ["2", "2", "4"]
        assert rows["sent per step"] == ["41.2 MiB"] * 3
        assert rows["state"] == ["done"] * 3
        best = page.query_selector_all("#comparison td.best")
        assert rows["tokens/s"][1] in [cell.inner_text() for cell in best]


def test_stragglers_are_marked(chromium, tmp_path):
    """In the second half rank 1 is slow, so that the others wait for it."""
    lines = [run_line("uneven", ranks=3, steps=120)]
    for step in range(10, 121, 10):
        lines.append(waits_line(step, *((0.05, 0.2, 0.3) if step <= 60 else (0.4, 0.1, 0.5))))
    many = [run_line("many", ranks=40), waits_line(10, *(1 + rank / 100 for rank in range(40)))]
    with opened_page(chromium, make_page(tmp_path, lines, run_lines("silent"), many)) as (page, troubles):
        uneven, large = page.query_selector_all("#wait-tables figure")
        assert "uneven" in uneven.query_selector("figcaption").inner_text()
        heads = [cell.inner_text() for cell in uneven.query_selector_all("thead th")]
        assert heads == ["rank", "1–20", "21–40", "41–60", "61–80", "81–100", "101–120"]  # noqa: RUF001
        rows = [row.query_selector_all("td") for row in uneven.query_selector_all("tbody tr")]
        texts = [[cell.inner_text() for cell in row] for row in rows]
        assert texts == [["5 ms"] * 3 + ["40 ms"] * 3, ["20 ms"] * 3 + ["10 ms"] * 3, ["30 ms"] * 3 + ["50 ms"] * 3]
        marked = [[cell.get_attribute("class") == "least" for cell in row] for row in rows]
        assert marked == [[True] * 3 + [False] * 3, [False] * 3 + [True] * 3, [False] * 6]
        assert len(large.query_selector_all("tbody tr")) == 16
        assert "24 more ranks have waited longer" in large.inner_text()
        assert "look at its machine" in page.inner_text("#waits-note")
        assert troubles == []


def test_it_prints(chromium, three_runs):
    """On paper dark colours become light ones and folded numbers are seen."""
    with opened_page(chromium, three_runs, color_scheme="dark") as (page, troubles):
        page.evaluate(
            "addEventListener('beforeprint',"
            " () => { window.printed = document.querySelectorAll('details[open]').length })"
        )
        assert page.pdf(format="A4").startswith(b"%PDF")
        assert page.evaluate("window.printed") == 3 + 3
        assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
        assert all(plot.evaluate(INK) > 8 for plot in page.query_selector_all("canvas"))
        assert troubles == []


def test_hostile_names_stay_text(chromium, tmp_path):
    hostile = "</script><script>window.taken = 1</script><!--<script>{{data}}<img src=x onerror=taken=1>"
    lines = run_lines(hostile, **{hostile: hostile})
    lines[10:10] = [{"kind": "event", "step": 3, "time_s": 1, "what": hostile, "detail": hostile}]
    for line in lines:
        if line["kind"] == "memory":
            line["bytes"][hostile] = 1e7
        if line["kind"] == "step":
            line["split_s"][hostile] = 0.01
    with opened_page(chromium, make_page(tmp_path, lines, run_lines())) as (page, troubles):
        assert page.evaluate("window.taken") is None
        assert hostile in page.inner_text("#comparison")
        assert hostile in page.inner_text("#events")
        assert all(plot.evaluate(INK) > 8 for plot in page.query_selector_all("canvas"))
        assert troubles == []


def test_little_to_show(chromium, tmp_path):
    """A run that has just begun, and one whose loss was lost, beside each other."""
    lost = run_lines("lost", steps=30)
    for line in lost:
        if line["kind"] == "step" and line["step"] > 20:
            line["loss"] = None
    just_begun = [run_line("begun")]
    with opened_page(chromium, make_page(tmp_path, just_begun)) as (page, troubles):
        assert "no losses yet" in page.inner_text("#loss")
        assert "no records of memory" in page.inner_text("#memory")
        assert "do not say what ranks have waited" in page.inner_text("#waits")
        assert "not finished" in page.inner_text("#comparison")
        assert troubles == []
    with opened_page(chromium, make_page(tmp_path, just_begun, lost)) as (page, troubles):
        assert "not a finite number" in page.inner_text("#loss")
        assert troubles == []


def test_long_runs_are_thinned_with_their_extremes(chromium, tmp_path):
    lines = [run_line(steps=30_000)]
    lines += [step_line(step, step * 0.2) for step in range(1, 30_001)]
    lines[12_345]["loss"], lines[23_456]["loss"] = 99.5, 0.125
    page = make_page(tmp_path, lines)
    points = data_of(page)["runs"][0]["loss"]["points"]
    assert 1000 < len(points["value"]) <= 2000
    assert points["step"] == sorted(points["step"])
    assert (points["step"][0], points["step"][-1]) == (1, 30_000)
    assert max(points["value"]) == 99.5 and min(points["value"]) == 0.125
    assert points["step"][points["value"].index(99.5)] == 12_345
    with opened_page(chromium, page) as (opened, troubles):
        assert "thinned" in opened.inner_text("footer")
        assert troubles == []


def test_only_our_own_scripts_and_styles_may_run(tmp_path):
    page = make_page(tmp_path, run_lines()).read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page).group(1)
    assert "unsafe" not in policy

    def hashes(element):
        texts = re.findall(rf"<{element}>(.*?)</{element}>", page, flags=re.S)
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]

    sources = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert sources["script-src"].split() == hashes("script") and len(hashes("script")) == 2
    assert sources["style-src"].split() == hashes("style") and len(hashes("style")) == 1


def test_a_page_is_complete_or_the_old_one(tmp_path):
    log = write_log(tmp_path / "run.jsonl", run_lines())
    result, page = report(log, folder=tmp_path)
    assert result.returncode == 0
    before = page.read_text()
    command = f"trap '' XFSZ; ulimit -f 16; exec {PROGRAM} report {log} -o {page}"  # as on a disk that is full
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert result.returncode == 1 and "File too large" in result.stderr
    assert page.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([log.name, page.name])
    link = tmp_path / "link.html"
    link.symlink_to(page)
    assert subprocess.run([PROGRAM, "report", log, "-o", link], capture_output=True).returncode == 0
    assert link.is_symlink() and page.read_text() == before
    shown = subprocess.run([PROGRAM, "report", log, "-o", "/dev/stdout"], capture_output=True, text=True)
    assert shown.stdout.startswith("<!doctype html>")


def test_a_resumed_run_is_one_curve(tmp_path):
    """What was done again counts once, time goes on, and memory is that of the ranks that there are now."""
    lines = [run_line(ranks=2, steps=60)]
    lines += [step_line(step, step * 1.0) for step in range(1, 51)]
    lines += [memory_line(rank) for rank in range(2)]
    lines += [run_line(ranks=3, first_step=41, steps=60)]
    lines += [{"kind": "event", "step": 40, "time_s": 0, "what": "resumed", "detail": "step-00000040"}]
    lines += [step_line(step, (step - 40) * 1.0) | {"loss": 1.0} for step in range(41, 46)]
    lines += [memory_line(rank, weights=7) for rank in range(3)]
    lines[51:51], lines[-1:-1] = [waits_line(50, 1.0, 2.0)], [waits_line(50, 1.0, 2.0, 3.0)]
    run = data_of(make_page(tmp_path, lines))["runs"][0]
    points = run["loss"]["points"]
    assert points["step"] == list(range(1, 46))
    assert points["value"][40:] == [1] * 5
    assert all(earlier < later for earlier, later in zip(points["time_s"], points["time_s"][1:], strict=False))
    assert points["time_s"][-1] > 50 + 5
    assert [memory["rank"] for memory in run["memory"]] == [0, 1, 2]
    assert run["memory"][2]["bytes"]["weights"] == 7
    assert run["waits"] == [{"first_step": 41, "last_step": 50, "seconds": [0.1, 0.2, 0.3]}]
    assert run["ranks"] == 3
    assert run["events"][0]["time_s"] > 50


def test_a_line_that_was_cut_off(tmp_path):
    log = write_log(tmp_path / "run.jsonl", run_lines(steps=20)[:15])
    log.write_text(log.read_text() + '{"kind":"step","st')
    result, page = report(log, folder=tmp_path)
    assert result.returncode == 0
    assert f"{log}:16: not JSON" in result.stderr and "cut off" in result.stderr
    assert data_of(page)["runs"][0]["warnings"]
    log.write_text(log.read_text() + "\n" + json.dumps(run_line(first_step=5)) + "\n")
    result, page = report(log, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert data_of(page)["runs"][0]["loss"]["points"]["step"] == [1, 2, 3, 4]


RUN = json.dumps(run_line())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "run.jsonl: cannot be opened: No such file"),
        ("", "run.jsonl: the file is empty"),
        ("\n\n", "no line of kind"),
        ("step,loss\n1,2\n", "run.jsonl:1: not JSON: step,loss"),
        ('{"kind":"st', "run.jsonl:1: not JSON"),
        (f"{RUN}\nnonsense\n{RUN}\nnonsense\n" + '{"kind":"end"}\n', "run.jsonl:4: not JSON: nonsense"),
        ("[1, 2]\n", "run.jsonl:1: a JSON object is expected, but it is array"),
        ('{"kind":"surprise"}\n', "no line of kind"),
        ('{"kind":"step","step":1}\n', 'run.jsonl:1: a line of kind "step" stands before the first'),
        (RUN + '\n{"kind":"step","step":"one"}\n', 'run.jsonl:2: "step" must be a whole number'),
        (RUN + '\n{"kind":"memory","bytes":{}}\n', 'run.jsonl:2: "rank" must be a whole number'),
        (RUN + '\n{"kind":"waits","step":0}\n', 'run.jsonl:2: a line of kind "waits" that does not follow'),
    ],
)
def test_bad_logs_are_named(tmp_path, text, words):
    log = tmp_path / "run.jsonl"
    if text is not None:
        log.write_text(text)
    result, page = report(log, folder=tmp_path)
    assert result.returncode == 1
    assert words in result.stderr
    assert not page.exists()


def test_unknown_kinds_and_keys_are_passed_over(tmp_path):
    lines = [run_line() | {"surprise": 1}, {"kind": "surprise"}, step_line(1, 0.0) | {"surprise": [{}]}, {"no": "kind"}]
    assert data_of(make_page(tmp_path, lines))["runs"][0]["loss"]["points"]["step"] == [1]


def test_a_page_that_cannot_be_written(tmp_path):
    log = write_log(tmp_path / "run.jsonl", run_lines(steps=5))
    result, _ = report(log, output=tmp_path / "missing/report.html")
    assert result.returncode == 1
    assert "missing/report.html: cannot be written: No such file" in result.stderr
