"""scripts/launch.sh on hosts that it is told of by trees of files, and on this one."""
import os
import resource
import shutil
import signal
import subprocess

import pytest

from resp import Raw
from servers import ROOT, SLOWNESS, Process, eventually, free_port, gateway_program

pytestmark = pytest.mark.gateway_only
LAUNCH = os.path.join(ROOT, "scripts", "launch.sh")


def expand(text):
    cpus = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


class Host:
    """A tree with /proc and /sys of a host. siblings: threads of each core; nodes: CPUs of each NUMA node."""

    def __init__(self, directory, cpus, siblings=None, nodes=None, online=None, allowed=None):
        self.root = str(directory)
        self.run_dir = os.path.join(self.root, "run")
        self.put("sys/devices/system/cpu/online", online or "0-%d" % (cpus - 1) if cpus > 1 else "0")
        for cpu in range(cpus):
            group = next((group for group in siblings or [] if cpu in group), [cpu])
            self.put("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu, ",".join(map(str, group)))
        for number, text in enumerate(nodes or ["0-%d" % (cpus - 1)]):
            self.put("sys/devices/system/node/node%d/cpulist" % number, text)
        self.put("proc/self/status", "Name:\tbash\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed:\t1\n" % (allowed or online or "0-%d" % (cpus - 1)))
        self.put("proc/sys/fs/nr_open", "1048576")

    def put(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else (text + "\n").encode())

    def cgroup_v2(self, path, root="/"):
        self.put("proc/self/cgroup", "0::" + path)
        self.put("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n35 24 0:30 %s /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate" % root)
        os.makedirs(os.path.join(self.root, "sys/fs/cgroup" + path), exist_ok=True)

    def cgroup_v1(self, path, root="/"):
        self.put("proc/self/cgroup", "9:name=systemd:/\n4:cpuset:%s\n3:cpu,cpuacct:%s\n0::/" % (path, path))
        self.put("proc/self/mountinfo", "31 30 0:28 %s /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n33 30 0:30 %s /sys/fs/cgroup/cpuset rw master:3 shared:4 - cgroup cgroup rw,cpuset"
                 "\n39 30 0:36 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw" % (root, root))
        os.makedirs(os.path.join(self.root, "sys/fs/cgroup/unified"), exist_ok=True)

    def process(self, pid, threads, name="zgateway", start=1000):
        """threads: CPU list of each."""
        self.put("proc/%d/comm" % pid, name)
        self.put("proc/%d/stat" % pid, "%d (%s ) x) S %s %d 0 0" % (pid, name, " ".join(["1"] * 18), start))
        for index, cpus in enumerate(threads):
            self.put("proc/%d/task/%d/status" % (pid, pid + index), "Name:\tzg-data-%d\nCpus_allowed_list:\t%s" % (index, cpus))

    def launch(self, *options, status=0):
        env = dict(os.environ, ZG_LAUNCH_ROOT=self.root)
        result = subprocess.run([LAUNCH, "--run-dir", self.run_dir, "--program", gateway_program(), "--dry-run"] + list(options), env=env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOWNESS)
        assert result.returncode == status, result.stdout + result.stderr
        return Plan(result.stdout, result.stderr)


class Plan:
    def __init__(self, text, error=""):
        self.text, self.error = text, error
        self.sets = {}
        for line in text.splitlines():
            if line.startswith("launch: exec "):
                words = line.split()
                for option, value in zip(words, words[1:]):
                    if option == "--set":
                        name, _, setting = value.replace("\\,", ",").partition("=")
                        self.sets[name] = setting
        self.cpus = [int(cpu) for cpu in self.sets.get("cores.cpus", "").split(",") if cpu]
        self.housekeeping = int(self.sets.get("cores.housekeeping_cpu", "-1"))
        assert not self.sets or int(self.sets["cores.data"]) == len(self.cpus)


def big_host(directory):
    """64 cores on two nodes, two threads each, numbered as Linux does on x86: 0-31 and 64-95 on node 0."""
    return Host(directory, 128, [[core, core + 64] for core in range(64)], ["0-31,64-95", "32-63,96-127"])


# ---- cores, nodes, siblings ----


def test_a_large_host_gives_one_node_and_first_threads(tmp_path):
    plan = big_host(tmp_path).launch()
    assert plan.cpus == list(range(32))
    assert plan.housekeeping == 64 and "second thread of data CPU 0" in plan.text
    assert "NUMA node 0" in plan.text and "64 physical cores" in plan.text


def test_a_number_of_cores_takes_the_node_that_is_just_large_enough(tmp_path):
    host = Host(tmp_path, 12, nodes=["0-7", "8-11"])
    plan = host.launch("--cores", "3")
    assert plan.cpus == [9, 10, 11] and plan.housekeeping == 8, plan.text
    plan = host.launch("--cores", "4")
    assert plan.cpus == [1, 2, 3, 4] and plan.housekeeping == 0, plan.text
    plan = host.launch("--cores", "10")
    assert len(plan.cpus) == 10 and "none has room for all" in plan.text


def test_a_node_may_be_asked_for(tmp_path):
    plan = big_host(tmp_path).launch("--numa", "1", "--cores", "4")
    assert plan.cpus == [32, 33, 34, 35] and plan.housekeeping == 96
    assert "no NUMA node 7" in big_host(tmp_path).launch("--numa", "7", status=2).error
    # Never beyond it.
    plan = big_host(tmp_path).launch("--numa", "1", "--cores", "40")
    assert set(plan.cpus) <= set(range(32, 64)) | set(range(96, 128))
    assert "too few physical cores: 8" in plan.text
    assert "of 128 usable CPUs are free on NUMA node 1" in big_host(tmp_path).launch("--numa", "1", "--cores", "64", "--reserve", "1", status=1).error


def test_cores_are_left_to_the_host(tmp_path):
    plan = big_host(tmp_path).launch("--reserve", "2")
    assert plan.cpus == list(range(2, 32)) and plan.housekeeping == 66
    plan = Host(tmp_path / "small", 4).launch("--reserve", "1")
    assert plan.cpus == [2, 3] and plan.housekeeping == 1
    # Not even their second threads.
    plan = Host(tmp_path / "smt", 4, [[0, 2], [1, 3]]).launch("--reserve", "1")
    assert plan.cpus == [1] and plan.housekeeping == 3


def test_two_cpus(tmp_path):
    plan = Host(tmp_path, 2).launch()
    assert plan.cpus == [1] and plan.housekeeping == 0
    plan = Host(tmp_path / "smt", 2, [[0, 1]]).launch()
    assert plan.cpus == [0] and plan.housekeeping == 1
    plan = Host(tmp_path / "both", 2).launch("--cores", "2")
    assert plan.cpus == [0, 1] and plan.housekeeping == 1 and "is a data core's too" in plan.text
    plan = Host(tmp_path / "one", 1).launch()
    assert plan.cpus == [0] and plan.housekeeping == 0


def test_more_data_cores_than_physical_cores_is_said(tmp_path):
    plan = Host(tmp_path, 8, [[core, core + 4] for core in range(4)]).launch("--cores", "6")
    assert plan.cpus[:4] == [0, 1, 2, 3] and len(set(plan.cpus)) == 6
    assert "too few physical cores: 2" in plan.text
    assert plan.housekeeping not in plan.cpus


def test_more_than_there_are_is_refused(tmp_path):
    plan = Host(tmp_path, 4).launch("--cores", "5", status=1)
    assert "5 data cores are wanted and 4 of 4 usable CPUs are free" in plan.error


# ---- what may be used ----


def test_offline_cpus_are_left_out(tmp_path):
    host = Host(tmp_path, 8, [[core, core + 4] for core in range(4)], online="0,2-4,6-7")
    plan = host.launch()
    assert plan.cpus == [0, 2, 3] and plan.housekeeping == 4
    assert "6 online, 6 usable" in plan.text


def test_the_affinity_mask_counts(tmp_path):
    plan = Host(tmp_path, 8, allowed="4-6").launch()
    assert plan.cpus == [5, 6] and plan.housekeeping == 4 and "affinity 4-6" in plan.text


@pytest.mark.parametrize("version", [1, 2])
def test_a_cpuset_of_odd_cpus(tmp_path, version):
    host = Host(tmp_path, 16, [[core, core + 1] for core in range(0, 16, 2)])
    if version == 2:
        host.cgroup_v2("/kube/pod/main")
        host.put("sys/fs/cgroup/kube/pod/cpuset.cpus.effective", "1,3,5,7,9,11,13,15")
        host.put("sys/fs/cgroup/kube/pod/main/cpuset.cpus.effective", "1,3,5,7,9")
    else:
        host.cgroup_v1("/kube/pod/main")
        host.put("sys/fs/cgroup/cpuset/kube/pod/main/cpuset.cpus", "1,3,5,7,9")
        host.put("sys/fs/cgroup/cpuset/kube/cpuset.cpus", "0-15")
    plan = host.launch()
    assert plan.cpus == [3, 5, 7, 9] and plan.housekeeping == 1, plan.text
    assert "cpuset 1,3,5,7,9" in plan.text and "5 physical cores" in plan.text


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("quota,period,cores", [("150000", "100000", 1), ("50000", "100000", 1), ("400000", "100000", 4), ("80000", "20000", 4), ("99900000", "100000", 7)])
def test_no_more_data_cores_than_the_quota(tmp_path, version, quota, period, cores):
    host = Host(tmp_path, 8)
    if version == 2:
        host.cgroup_v2("/a/b")
        host.put("sys/fs/cgroup/a/b/cpu.max", quota + " " + period)
    else:
        host.cgroup_v1("/a/b")
        host.put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", quota)
        host.put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", period)
    plan = host.launch()
    assert len(plan.cpus) == cores, plan.text
    assert plan.housekeeping not in plan.cpus
    if quota == "150000":
        assert "1.500 CPUs" in plan.text and "7 data cores would be throttled: the quota gives 1" in plan.text
    assert len(host.launch("--cores", "7").cpus) == cores


def test_the_tightest_quota_of_nested_cgroups_holds(tmp_path):
    host = Host(tmp_path, 16)
    host.cgroup_v2("/a/b/c")
    host.put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000")
    host.put("sys/fs/cgroup/a/b/cpu.max", "300000 100000")
    host.put("sys/fs/cgroup/a/cpu.max", "800000 100000")
    assert len(host.launch().cpus) == 3


@pytest.mark.parametrize("path,root", [("/docker/0123", "/docker/0123"), ("/../../elsewhere", "/"), ("/not/mounted/here", "/"), ("/", "/")])
def test_a_cgroup_as_a_container_sees_it(tmp_path, path, root):
    """The mount shows the container's own part, or the path is told from outside: the files lie at the mount point."""
    host = Host(tmp_path, 8)
    host.cgroup_v2("/", root)
    host.put("proc/self/cgroup", "0::" + path)
    host.put("sys/fs/cgroup/cpu.max", "200000 100000")
    host.put("sys/fs/cgroup/cpuset.cpus.effective", "0-5")
    plan = host.launch()
    assert plan.cpus == [1, 2], plan.text


# ---- other instances ----


def test_cores_that_another_instance_is_pinned_to_are_left_alone(tmp_path):
    host = big_host(tmp_path)
    host.process(4711, ["0", "1", "2", "3", "64"])
    host.process(4712, ["0-127"])  # not pinned: holds nothing
    host.process(4713, ["40"], name="redis-server")  # somebody else's
    plan = host.launch("--cores", "4")
    assert "process 4711 holds CPUs 0-3,64" in plan.text and "4712" not in plan.text and "4713" not in plan.text
    assert plan.cpus == [4, 5, 6, 7] and plan.housekeeping == 68, plan.text
    assert host.launch().cpus == list(range(32, 64)), "the other node has more free cores"


def test_cores_that_a_file_of_the_run_directory_names_are_left_alone(tmp_path):
    host = Host(tmp_path, 8)
    host.process(100, ["0-7"], start=555)
    host.put("run/100.cpus", "start=555 cpus=0-2")
    plan = host.launch("--cores", "2")
    assert "process 100 holds CPUs 0-2" in plan.text
    assert plan.cpus == [4, 5] and plan.housekeeping == 3


@pytest.mark.parametrize("what", ["process ended", "number used again", "garbage", "binary", "empty", "range backwards", "name"])
def test_files_of_the_dead_and_files_of_nonsense_hold_nothing(tmp_path, what):
    host = Host(tmp_path, 4)
    host.process(100, ["0-3"], name="zgateway", start=555)
    if what == "process ended":
        host.put("run/200.cpus", "start=555 cpus=0-3")
    elif what == "number used again":
        host.put("run/100.cpus", "start=554 cpus=0-3")
    elif what == "name":
        host.put("run/../run/x100.cpus", "start=555 cpus=0-3")
    else:
        host.put("run/100.cpus", {"garbage": "cpus=0-3", "binary": b"\x00\xff\n\x01", "empty": b"", "range backwards": "start=555 cpus=3-0"}[what])
    plan = host.launch()
    assert plan.cpus == [1, 2, 3], plan.text
    assert os.listdir(host.run_dir), "a dry run removes nothing"


def test_everything_held_is_said(tmp_path):
    host = Host(tmp_path, 4)
    host.process(100, ["0", "1", "2", "3"])
    plan = host.launch(status=1)
    assert "0 of 4 usable CPUs are free" in plan.error and "--share" in plan.error
    plan = host.launch("--share")
    assert plan.cpus == [0] and "that another instance holds" in plan.text
    host = Host(tmp_path / "half", 4)
    host.process(100, ["0", "1"])
    assert "2 of 4" in host.launch("--cores", "3", status=1).error
    plan = host.launch("--cores", "3", "--share")
    assert plan.cpus[:2] == [2, 3] and "1 of the data cores run on CPUs that another instance holds" in plan.text


def test_a_core_whose_other_thread_is_held_comes_last(tmp_path):
    host = Host(tmp_path, 8, [[core, core + 4] for core in range(4)])
    host.process(100, ["0", "5"])
    plan = host.launch("--cores", "2")
    assert plan.cpus == [2, 3]
    plan = host.launch("--cores", "3")
    assert plan.cpus[:2] == [2, 3] and plan.cpus[2] in (1, 4, 6, 7) and "too few physical cores: 1" in plan.text


# ---- garbage ----


def test_garbage_is_said_and_survived(tmp_path):
    host = Host(tmp_path, 4)
    host.put("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "x")
    host.put("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0-1")  # without itself
    host.put("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", b"\x00\x01\xff")
    host.put("sys/devices/system/node/node0/cpulist", "zero")
    host.put("sys/devices/system/node/nodeX/cpulist", "0")
    host.cgroup_v2("/a")
    host.put("sys/fs/cgroup/a/cpu.max", "lots of it")
    host.put("sys/fs/cgroup/a/cpuset.cpus.effective", "0-3,")
    plan = host.launch()
    assert plan.cpus == [1, 2, 3] and plan.housekeeping == 0
    assert "of 3 CPUs the siblings are not known" in plan.text
    assert "a CPU quota of 'lots" in plan.text and "is no list of CPUs" in plan.text


@pytest.mark.parametrize("text", ["", "0-", "-3", "0--3", "3-0", "0,,1", "0 1", "0-3;reboot", "$(touch x)", "0x3", "9999999999", b"\xff\xfe"])
def test_a_list_of_cpus_that_is_none(tmp_path, text):
    host = Host(tmp_path, 4, allowed="1-3")
    host.put("sys/devices/system/cpu/online", text)
    plan = host.launch()
    assert plan.cpus == [2, 3] and "cannot tell which CPUs are online" in plan.text
    host.put("proc/self/status", "Name:\tbash")
    assert "cannot tell which CPUs there are" in host.launch(status=1).error


def test_garbage_in_the_list_of_cgroups_and_mounts(tmp_path):
    host = Host(tmp_path, 4)
    host.put("proc/self/cgroup", b"\n:::\nx\n0:\n3:cpu\n\xff\n0::relative\n")
    host.put("proc/self/mountinfo", b"1 2 3\n\n\xff\n35 24 0:30 / /sys/fs/cgroup rw - cgroup2 x rw\n35 24 0:30 / /sys rw -\n")
    assert host.launch().cpus == [1, 2, 3]


def test_a_tree_without_anything_but_the_affinity(tmp_path):
    host = Host(tmp_path, 1)
    for directory in ("sys", "run"):
        subprocess.run(["rm", "-rf", os.path.join(host.root, directory)], check=True)
    host.put("proc/self/status", "Cpus_allowed_list:\t2-5")
    plan = host.launch()
    assert plan.cpus == [3, 4, 5] and plan.housekeeping == 2


def test_nothing_is_left(tmp_path):
    host = Host(tmp_path, 4)
    host.cgroup_v2("/a")
    host.put("sys/fs/cgroup/a/cpuset.cpus.effective", "8-9")
    assert "no CPU is left" in host.launch(status=1).error


# ---- options ----


@pytest.mark.parametrize("options", [["--cores", "0"], ["--cores", "65"], ["--cores", "x"], ["--cores"], ["--numa", "x"], ["--reserve", "-1"], ["--nonsense"], ["stray"],
                                     ["--config", "/nonexistent"]])
def test_wrong_options(tmp_path, options):
    assert Host(tmp_path, 4).launch(*options, status=2).error.startswith("launch: ")


def test_what_stands_behind_the_dashes_goes_to_zgateway(tmp_path):
    plan = Host(tmp_path, 4).launch("--", "--listen", "127.0.0.1:1", "--set", "log.level=debug", "a b")
    assert plan.text.rstrip().endswith(r"--listen 127.0.0.1:1 --set log.level=debug a\ b")


def test_help_and_a_missing_program(tmp_path):
    text = subprocess.run([LAUNCH, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "--dry-run" in text and "Exit status" in text
    result = subprocess.run([LAUNCH, "--program", str(tmp_path), "--dry-run"], stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and "is no program" in result.stderr


# ---- this host ----


def affinity(pid):
    """CPUs by the name of the thread."""
    found = {}
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/comm" % (pid, task)) as file:
            found[file.read().strip()] = os.sched_getaffinity(int(task))
    return found


def test_a_gateway_is_started_and_pinned(cluster, run_dir, prefix):
    port = free_port()
    directory = os.path.join(run_dir, prefix + "launch")
    claims = os.path.join(directory, "claims")
    config = os.path.join(directory, "zgateway.yaml")
    os.makedirs(directory)
    with open(config, "w") as file:
        file.write("listeners: [{address: \"127.0.0.1:%d\"}]\nbackends: [{name: main, cluster: [\"127.0.0.1:%d\"]}]\n" % (port, cluster.port))
    process = Process("launch", [LAUNCH, "--share", "--cores", "1", "--run-dir", claims, "--program", gateway_program(), "--config", config, "--", "--set", "log.level=info"], directory)
    try:
        def answers():
            assert process.is_running(), process.log()
            try:
                with Raw(("127.0.0.1", port)) as raw:
                    return b"loading:0" in raw.command("INFO")
            except OSError:
                return False
        eventually(answers, 30, process.log)
        # The script has become the gateway: signals and the service manager see it.
        with open("/proc/%d/comm" % process.pid) as file:
            assert file.read().strip() == "zgateway"
        log = process.log()
        plan = Plan(log)
        threads = affinity(process.pid)
        assert threads["zg-data-0"] == {plan.cpus[0]}
        assert os.sched_getaffinity(process.pid) == {plan.housekeeping}
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard
        with open(os.path.join(claims, "%d.cpus" % process.pid)) as file:
            claimed = expand(file.read().split("cpus=")[1].strip())
        assert set(plan.cpus) | {plan.housekeeping} <= claimed
        # Another launch sees what is held, by the file and by the threads.
        for place in (claims, os.path.join(directory, "elsewhere")):
            second = subprocess.run([LAUNCH, "--share", "--cores", "1", "--dry-run", "--run-dir", place, "--program", gateway_program()], stdout=subprocess.PIPE, text=True, check=True)
            assert "process %d holds CPUs" % process.pid in second.stdout, second.stdout
        process.signal(signal.SIGTERM)
        assert process.child.wait(20 * SLOWNESS) == 0
        # What the dead one held is removed by the next.
        third = Process("third", [LAUNCH, "--share", "--cores", "1", "--run-dir", claims, "--program", gateway_program(), "--", "--check", "--listen", "127.0.0.1:1", "--cluster", "127.0.0.1:1"], directory)
        assert third.child.wait(60 * SLOWNESS) == 0, third.log()
        assert not os.path.exists(os.path.join(claims, "%d.cpus" % process.pid))
    finally:
        if process.is_running():
            process.kill()


def test_launches_at_the_same_time_choose_different_cpus(run_dir, prefix, tmp_path):
    """Each writes down what it holds before the next one looks."""
    host = Host(tmp_path, 8)
    claims = os.path.join(run_dir, prefix + "claims")
    stub = os.path.join(str(tmp_path), "zgateway")
    # Stands in for the gateway: it must live while the others look, and its /proc is in the tree.
    with open(stub, "w") as file:
        file.write("#!/bin/bash\nmkdir -p %s/proc/$$\necho \"$@\" >%s/$$.args\nexec sleep 60\n" % (host.root, host.root))
    os.chmod(stub, 0o755)
    env = dict(os.environ, ZG_LAUNCH_ROOT=host.root)
    # A tree has no /proc of processes to come: their numbers are made up beforehand by starting each from a shell that writes its own.
    script = "mkdir -p %s/proc/$$; echo \"$$ (launch) S %s 77 0\" >%s/proc/$$/stat; exec \"$@\"" % (host.root, " ".join(["1"] * 18), host.root)
    started = [subprocess.Popen(["bash", "-c", script, "bash", LAUNCH, "--cores", "2", "--run-dir", claims, "--program", stub], env=env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        def all_chosen():
            return len([name for name in os.listdir(host.root) if name.endswith(".args")]) + sum(child.poll() is not None for child in started) == 3
        eventually(all_chosen, 60)
        held = []
        for child in started:
            if child.poll() is None:
                with open(os.path.join(claims, "%d.cpus" % child.pid)) as file:
                    held.append(expand(file.read().split("cpus=")[1].strip()))
        # Eight CPUs, three for each: the third has two left, and takes a data core's for the housekeeper.
        assert len(held) == 3 and sum(len(cpus) for cpus in held) == len(set().union(*held)) == 8, held
    finally:
        for child in started:
            if child.poll() is None:
                child.kill()
            child.wait()
            child.stderr.close()


# ---- systemd ----


def unit(name):
    with open(os.path.join(ROOT, "scripts", name)) as file:
        return [line.strip() for line in file if "=" in line and not line.startswith("#")]


def test_the_units_are_right(tmp_path):
    """systemd's own check where it is there; with a program that exists, since it looks for it."""
    service, listening = unit("zgateway.service"), unit("zgateway.socket")
    assert "Type=notify" in service and "Requires=zgateway.socket" in service and "Service=zgateway.service" in listening
    stop = next(int(line.split("=")[1]) for line in service if line.startswith("TimeoutStopSec="))
    text = subprocess.run([gateway_program(), "--print-config"], stdout=subprocess.PIPE, text=True, check=True).stdout
    drain = next(line for line in text[text.index("\ndrain:"):].splitlines() if "timeout:" in line)
    assert stop > int(drain.split("timeout:")[1].split("s")[0]), "it would be killed while it drains"
    if shutil.which("systemd-analyze") is None:
        return
    for name in ("zgateway.service", "zgateway.socket"):
        with open(os.path.join(ROOT, "scripts", name)) as file, open(os.path.join(str(tmp_path), name), "w") as copy:
            copy.write(file.read().replace("/usr/local/lib/zgateway/launch.sh", "/bin/true"))
    result = subprocess.run(["systemd-analyze", "verify"] + [os.path.join(str(tmp_path), name) for name in ("zgateway.service", "zgateway.socket")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0 and "zgateway" not in result.stdout, result.stdout
