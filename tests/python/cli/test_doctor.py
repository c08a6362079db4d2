"""The doctor's measurements against what others say of this machine, and its verdict on networks that were spoilt."""

import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

from support import networks
from support.running import Running
from support.trainer import PROGRAM, mpirun, run, torchrun


def doctor(*flags, seconds=1, megabytes=4):
    """The command, with short transfers."""
    return [PROGRAM, "doctor", *transfers(seconds, megabytes), *flags]


def transfers(seconds=1, megabytes=4):
    return [f"--seconds={seconds}", f"--megabytes={megabytes}"]


def report_of(result):
    """What --json has printed."""
    assert result.returncode in (0, 1), result.stderr
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["is_fine"] else 1)
    assert report["is_fine"] == all(found["severity"] == "note" for found in report["findings"])
    return report


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The report of two local ranks, and where they have written."""
    folder = tmp_path_factory.mktemp("runs")
    return report_of(run(*doctor("--ranks=2", "--json", f"--save={folder}"), OMP_NUM_THREADS="1")), folder


def test_what_it_says_of_this_machine_is_so(local):
    report, folder = local
    assert report["ranks"] == 2
    assert [machine["rank"] for machine in report["machines"]] == [0, 1]
    for machine in report["machines"]:
        assert machine["origin"] == "launch"
        assert machine["cores"]["allowed"] == sorted(os.sched_getaffinity(0))
        assert (machine["cores"]["threads"], machine["cores"]["omp_num_threads"]) == (1, "1")
        memory = machine["memory"]
        assert memory["total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert 0 < memory["available"] <= memory["total"]
        assert memory["open_files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        assert memory["locked_limit"] == (-1 if locked == resource.RLIM_INFINITY else locked)
        assert memory["shared_total"] == shutil.disk_usage("/dev/shm").total
        assert machine["disk"]["free"] == pytest.approx(shutil.disk_usage(folder).free, rel=0.1)
        assert machine["network"]["host"] == socket.gethostname()
        assert machine["versions"]["torch"] == torch.__version__.split("+")[0]
        assert machine["versions"]["kernel"] == platform.release()
        assert len(machine["gpus"]) == torch.cuda.device_count()


def test_its_interfaces_are_those_of_the_system(local):
    listed = json.loads(subprocess.run(["ip", "-json", "addr"], capture_output=True, text=True, check=True).stdout)
    expected = {(each["ifname"], own["local"], each["mtu"]) for each in listed for own in each["addr_info"]}
    for machine in local[0]["machines"]:
        network = machine["network"]
        found = {(own["name"], own["address"].split("%")[0], own["mtu"]) for own in network["interfaces"]}
        assert found == expected
        # A run on one machine opens no port to the network.
        assert (network["address"], network["interface"], network["chosen_by"]) == ("127.0.0.1", "lo", "one machine")


def test_local_links_are_measured(local):
    links = local[0]["links"]
    assert [(link["from"], link["to"]) for link in links] == [(0, 1), (1, 0)]
    for link in links:
        assert link["fault"] == ""
        assert link["address"].startswith("127.0.0.1:")
        assert 0 < link["latency_s"] < 1
        assert link["bytes_per_s"] > 1e6
        assert link["together_bytes_per_s"] > 1e6
        assert abs(link["clock_offset_s"]) <= link["clock_error_s"] + 1e-6  # ranks of one machine have one clock


def test_the_disk_is_measured_once_and_nothing_is_left(local):
    report, folder = local
    first, second = (machine["disk"] for machine in report["machines"])
    assert first["written"] > 0
    assert first["bytes_per_s"] > 0
    assert (first["fault"], second["written"]) == ("", 0)
    assert list(folder.iterdir()) == []


def test_four_ranks_have_a_table_for_each_topic():
    result = run(*doctor("--ranks=4"))
    assert result.returncode in (0, 1), result.stderr
    assert result.stdout.startswith("4 rank(s) on 1 machine(s), started by launch\n")
    for topic in ("network", "links: one pair at a time", "links: all pairs at once", "versions", "disk", "GPUs"):
        assert f"\n{topic}\n" in result.stdout
    assert re.search(r"^verdict: ", result.stdout, flags=re.M)
    assert len(re.findall(r"^[0-3] *( +\d\S* [GMk]bit/s| +-){4}$", result.stdout, flags=re.M)) == 8


def test_a_file_that_is_written_has_no_name(tmp_path):
    """So it is gone however the program ends."""
    running = Running(*doctor("--ranks=1", f"--save={tmp_path}"))
    while not running.has_ended():
        assert list(tmp_path.iterdir()) == []
    code, _, errors = running.end()
    assert code in (0, 1), errors


def test_an_interrupt_ends_it(tmp_path):
    # Whoever starts the tests in the background of a shell may ignore it, and programs inherit that.
    heeding = ["env", "--default-signal=INT"]
    running = Running(*heeding, *doctor("--ranks=2", seconds=1000, megabytes=1000), TMPDIR=str(tmp_path))
    running.wait_until(lambda: len(running.ranks) == 2)
    running.process.send_signal(signal.SIGINT)
    code, _, errors = running.end(timeout=20)
    assert (code, errors) == (130, "fairshard: ended by SIGINT\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_launchers(launcher):
    start = torchrun("--nproc-per-node=2", "--standalone") if launcher == "torchrun" else [*mpirun(), "-n", "2"]
    result = run(*start, *doctor("--json"), OMP_NUM_THREADS="1")
    # Both add lines of their own where a rank has found something.
    report = json.loads(result.stdout[result.stdout.index("{") : result.stdout.rindex("\n}") + 2])
    assert (result.returncode == 0) == report["is_fine"], result.stderr
    assert [machine["origin"] for machine in report["machines"]] == [
        {"torchrun": "torchrun", "mpirun": "Open MPI"}[launcher]
    ] * 2
    assert [link["fault"] for link in report["links"]] == ["", ""]


def test_python_s_version_is_known_where_python_starts_it():
    result = run(sys.executable, "-m", "fairshard", "doctor", *transfers(), "--ranks=1", "--json")
    assert report_of(result)["machines"][0]["versions"]["python"] == platform.python_version()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ranks=0"], "--ranks"),
        (["--seconds=0"], "--seconds"),
        (["--answer-s=nan"], "--answer-s"),
        (["--surprise"], "--surprise"),
    ],
)
def test_bad_options_are_named(options, words):
    result = run(PROGRAM, "doctor", *options)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr


def test_ranks_that_do_not_come_are_named():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    result = run(*doctor("--timeout-s=0.5", "--json"), **variables, MASTER_PORT=str(port))
    assert (result.returncode, result.stdout) == (2, "")
    assert re.search(r"fairshard: rank 0: rank 0 of 2 waited 0.5 s at .* for rank\(s\) 1", result.stderr)


def test_a_folder_that_cannot_be_written_to_is_a_finding(tmp_path):
    (tmp_path / "file").touch()
    report = report_of(run(*doctor("--ranks=1", "--json", f"--save={tmp_path}/file")))
    (found,) = (each for each in report["findings"] if each["topic"] == "disk")
    assert found["severity"] == "fails"
    assert "is no folder" in found["seen"]


# Ranks in networks of their own.


def spoilt(ranks, *setup, seconds=1, answer_s=5, **more):
    """The report of ranks on machines of their own, of which rank 0 alone prints; all end with one status."""
    ended = networks.run_ranks(ranks, *doctor("--json", f"--answer-s={answer_s}", seconds=seconds), setup=setup, **more)
    codes = {rank.code for rank in ended}
    assert len(codes) == 1, ended
    assert all(rank.stdout == "" for rank in ended[1:]), ended
    report = json.loads(ended[0].stdout)
    assert codes == {0 if report["is_fine"] else 1}
    return report


def found_on(report, *topics):
    return [(each["severity"], each["ranks"]) for each in report["findings"] if each["topic"] in topics]


def mbit(rate):
    return rate * 8 / 1e6


#: What the kernel lets through of packets of 1500 bytes, without their headers.
RATE = 100 * 1448 / 1514


@pytest.mark.alone
@pytest.mark.networks
@pytest.mark.parametrize("ranks", [2, 4])
def test_nothing_is_wrong_with_a_good_network(ranks):
    report = spoilt(ranks, seconds=3)
    assert found_on(report, "network", "links", "ranks") == []
    assert len(report["links"]) == ranks * (ranks - 1)
    for link in report["links"]:
        assert 0.7 * RATE < mbit(link["bytes_per_s"]) < 1.15 * RATE  # a busy machine sends less, never more
        assert link["address"].startswith(networks.address_of(link["to"]) + ":")
    for rank in range(ranks):
        sent = sum(link["together_bytes_per_s"] for link in report["links"] if link["from"] == rank)
        assert 0.4 * RATE < mbit(sent) < 1.3 * RATE
    for machine in report["machines"]:
        network = machine["network"]
        assert (network["interface"], network["chosen_by"]) == ("eth0", "GLOO_SOCKET_IFNAME")
        assert network["address"] == networks.address_of(machine["rank"])
        assert network["address_to_master"] == networks.meeting_address_of(machine["rank"])


SLOW = "tc -n rank{} qdisc replace dev eth0 root tbf rate 10mbit burst 16kb latency 50ms"


@pytest.mark.alone
@pytest.mark.networks
def test_a_slow_direction_of_two_ranks():
    report = spoilt(2, SLOW.format(1), seconds=2)
    (found,) = (each for each in report["findings"] if each["topic"] == "links")
    assert (found["severity"], found["ranks"]) == ("hurts", [1, 0])
    rate, others = re.fullmatch(
        r"rank 1 -> rank 0 is (\S+) Mbit/s, the other pairs (\d+) Mbit/s", found["seen"]
    ).groups()
    assert float(rate) == pytest.approx(10, rel=0.15)
    assert float(others) == pytest.approx(RATE, rel=0.15)


@pytest.mark.alone
@pytest.mark.networks
def test_one_of_four_ranks_sends_slowly():
    report = spoilt(4, SLOW.format(2), seconds=4)
    (found,) = (each for each in report["findings"] if each["topic"] == "links")
    assert (found["severity"], found["ranks"]) == ("hurts", [2])
    assert re.match(r"rank 2 -> every other rank is (9|10)(\.\d)? Mbit/s, the other pairs \d+ Mbit/s$", found["seen"])


@pytest.mark.networks
@pytest.mark.parametrize(("ranks", "receiver"), [(2, 0), (4, 2)])
def test_packets_that_vanish_in_one_direction(ranks, receiver):
    """Those of rank 1 to another one go to a machine that nobody has."""
    there = networks.address_of(receiver)
    vanish = f"ip -n rank1 neigh replace {there} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
    begin = time.monotonic()
    report = spoilt(ranks, vanish, answer_s=2)
    assert time.monotonic() - begin < 40
    (found,) = (each for each in report["findings"] if each["topic"] == "links")
    assert (found["severity"], sorted(found["ranks"])) == ("fails", sorted([1, receiver]))
    for words in (
        "could not connect: ",
        f"no answer within 2 s from rank 1 to rank {receiver}",
        f"no answer within 2 s from rank {receiver} to rank 1",
        " at 10.99.0.2 on eth0",
        f" at {there} on eth0",
        f"rank 1 has got the call of rank {receiver}, so it is what rank 1 sends to rank {receiver} that is lost",
    ):
        assert words in found["seen"]
    # What can be measured is.
    others = [link for link in report["links"] if {link["from"], link["to"]} != {1, receiver}]
    assert len(others) == ranks * (ranks - 1) - 2
    assert all(link["fault"] == "" and link["bytes_per_s"] > 0 for link in others)


@pytest.mark.networks
@pytest.mark.parametrize("ranks", [2, 4])
def test_an_interface_that_leads_elsewhere(ranks):
    setup = (
        "ip -n rank1 link add other0 type veth peer name other1",
        "ip -n rank1 addr add 10.97.0.1/24 dev other0",
        "ip -n rank1 link set other0 up",
        "ip -n rank1 link set other1 up",
    )
    report = spoilt(ranks, *setup, variables={1: {"GLOO_SOCKET_IFNAME": "other0"}}, answer_s=2)
    assert found_on(report, "network", "links") == [("fails", [1])]
    (found,) = (each for each in report["findings"] if each["topic"] == "network")
    assert "listens at 10.97.0.1 on other0 (by GLOO_SOCKET_IFNAME)" in found["seen"]
    assert found["change"] == "set GLOO_SOCKET_IFNAME=eth0"


@pytest.mark.networks
def test_an_interface_that_is_not_there():
    report = spoilt(2, variables={1: {"GLOO_SOCKET_IFNAME": "eth7"}}, answer_s=2)
    assert found_on(report, "network", "links") == [("fails", [1])]
    (found,) = (each for each in report["findings"] if each["topic"] == "network")
    assert found["seen"].startswith("GLOO_SOCKET_IFNAME is eth7, which has no address here; there are ")
    assert "eth0 (10.99.0.2)" in found["seen"]
    assert found["change"] == "set GLOO_SOCKET_IFNAME=eth0"


@pytest.mark.networks
def test_a_host_name_of_the_loopback(tmp_path):
    """As Debian writes it to /etc/hosts."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node\n")
    setup = (f"mount --bind {hosts} /etc/hosts", "hostname node")
    by_name = {rank: {"GLOO_SOCKET_IFNAME": ""} for rank in range(2)}
    report = spoilt(2, *setup, variables=by_name, answer_s=2)
    assert found_on(report, "network", "links") == [("fails", [0, 1])]
    (found,) = (each for each in report["findings"] if each["topic"] == "network")
    assert found["seen"].startswith("the host name node has the address 127.0.1.1 of the loopback interface")
    assert "set GLOO_SOCKET_IFNAME=eth0, or give the name" in found["change"]


@pytest.mark.networks
def test_long_packets_that_are_lost():
    """The switch's port takes shorter ones than the ranks send; what they tell each other of it is short enough."""
    setup = ["ip link set port1 mtu 600"]
    setup += [f"ip -n rank{rank} link set eth0 gso_max_segs 1 gso_max_size 1500" for rank in range(2)]
    report = spoilt(2, *setup, answer_s=2)
    assert found_on(report, "links", "ranks") == [("fails", [0, 1]), ("fails", [1, 0])]
    for found in report["findings"][:2]:
        assert found["seen"].endswith(", though it had answered before")
        assert "MTU" in found["change"]
    assert len(report["machines"]) == 2
