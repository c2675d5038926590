"""Limits of pods: which container, which limit, /dev/shm, and files that are no pods or try to be more than data."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machines import by_name, with_host
from headway.foreign.documents import RefusedError
from headway.foreign.pod import DEFAULT_SHM, Pod, pods_of, quantity, read_pods, trainer, with_pod
from headway.units import GIB

PODS = Path(__file__).parents[2] / "data" / "pods"


def one(text: str) -> Pod:
    (pod,) = pods_of(text)
    return pod


def pod_yaml(container: str = "", rest: str = "") -> str:
    return f"kind: Pod\nmetadata: {{name: run}}\nspec:\n  containers:\n  - name: main\n{container}{rest}"


class TestRayJob:
    def test_the_pod_with_devices_is_the_trainer_s(self):
        pod = trainer(read_pods(PODS / "rayjob.yaml"))
        assert (pod.name, pod.container, pod.gpus, pod.replicas) == (
            "RayJob slime-30b, gpu-group", "ray-worker", 8, 2
        )  # fmt: skip
        assert pod.limit == 1_600_000_000_000
        assert pod.shm == 200 * GIB

    def test_the_others_are_told(self):
        notes = " ".join(trainer(read_pods(PODS / "rayjob.yaml")).notes)
        assert "head (no devices): at most 64.00 GiB" in notes
        assert "sidecar run beside ray-worker" in notes

    def test_text_in_a_config_map_is_no_pod_and_ends_no_document(self):
        assert [pod.container for pod in read_pods(PODS / "rayjob.yaml")] == ["submitter", "ray-head", "ray-worker"]


def test_of_several_groups_with_devices_the_lowest_limit_counts():
    few = Pod("few", "main", 10 * GIB, 4, None)
    assert trainer([Pod("none", "main", None, 8, None), replace(few, limit=20 * GIB, name="more"), few]).name == "few"


def test_a_pod_s_own_limit_bounds_its_containers():
    text = pod_yaml("    resources: {limits: {memory: 64Gi}}\n", "  resources: {limits: {memory: 48Gi}}\n")
    assert one(text).limit == 48 * GIB


def test_without_a_limit_the_node_is_the_limit():
    pod = one(pod_yaml("    resources: {requests: {memory: 64Gi, amd.com/gpu: 8}}\n"))
    assert (pod.limit, pod.gpus) == (None, 8)
    assert "requests 64.00 GiB" in pod.notes[-1]
    machine = by_name("8xh100-80")
    assert with_pod(machine, replace(pod, shm=None)) == machine


class TestShm:
    MOUNT = "    volumeMounts: [{mountPath: /dev/shm, name: s}]\n    resources: {limits: {memory: 8Gi}}\n"

    def test_nothing_mounted(self):
        assert one(pod_yaml()).shm == DEFAULT_SHM

    def test_the_node_s_own(self):
        assert one(pod_yaml("", "  hostIPC: true\n")).shm is None

    @pytest.mark.parametrize(
        ("volume", "size"),
        [
            ("emptyDir: {medium: Memory, sizeLimit: 2Gi}", 2 * GIB),
            ("emptyDir: {medium: Memory}", 8 * GIB),
            ("emptyDir: {medium: Memory, sizeLimit: 16Gi}", 8 * GIB),
            ("emptyDir: {sizeLimit: 2Gi}", None),
            ("hostPath: {path: /dev/shm}", None),
        ],
    )
    def test_volumes(self, volume, size):
        assert one(pod_yaml(self.MOUNT, f"  volumes: [{{name: s, {volume}}}]\n")).shm == size

    def test_a_volume_that_is_mounted_elsewhere(self):
        text = pod_yaml(
            "    volumeMounts: [{mountPath: /cache, name: s}]\n",
            "  volumes: [{name: s, emptyDir: {medium: Memory, sizeLimit: 2Gi}}]\n",
        )
        assert one(text).shm == DEFAULT_SHM


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        ("1600Gi", 1600 * GIB),
        ("1.5Ti", 1536 * GIB),
        ("100m", 1),
        ("1e3", 1000),
        ("3E", 3 * 10**18),
        (0, 0),
        (".5k", 500),
    ],
)
def test_quantities(raw, count):
    assert quantity(raw) == count


@pytest.mark.parametrize("raw", ["12 GB", "-1", "1600GB", True, [1], "1e99999999", "9" * 30, "1Ki" * 20, ""])
def test_what_is_no_quantity(raw):
    with pytest.raises(InputError, match=r"no quantity|more memory"):
        quantity(raw)


class TestMachine:
    def test_ray_reads_the_container_s_limit(self):
        pool = with_pod(by_name("2x8xb200"), Pod("p", "main", 1000, 8, None)).pool("node[1].host")
        assert [(limit.name, limit.bytes) for limit in pool.limits] == [("Ray 0.95", 950), ("pod", 1000)]
        assert pool.floor_upper == 0

    def test_a_limit_above_what_the_node_has_changes_nothing_of_it(self):
        machine = with_host(by_name("8xb200"), 512 * GIB)
        pool = with_pod(machine, Pod("p", "main", 1024 * GIB, 8, None)).pool("node[0].host")
        assert pool.lowest.bytes < 512 * GIB
        assert "pod" in [limit.name for limit in pool.limits]

    def test_shm_is_a_pool(self):
        pool = with_pod(by_name("8xb200"), Pod("p", "main", None, 8, 7 * GIB)).pool("node[0].shm")
        assert pool.lowest.bytes == 7 * GIB

    def test_unified_memory_has_no_such_limit(self):
        with pytest.raises(InputError, match="leave --pod out"):
            with_pod(by_name("gb10"), Pod("p", "main", 1000, 1, None))


class TestFiles:
    def test_a_missing_file(self, tmp_path):
        with pytest.raises(InputError, match=r"--pod .*none\.yaml: cannot be read"):
            read_pods(tmp_path / "none.yaml")

    def test_a_file_that_is_too_large(self, tmp_path):
        path = tmp_path / "large.yaml"
        path.write_text("a" * ((1 << 20) + 1))
        with pytest.raises(InputError, match="larger than 1 MiB"):
            read_pods(path)

    @pytest.mark.parametrize("text", ["", "kind: Service", "- 1", "containers: []", "spec: {containers: 4}"])
    def test_no_pod(self, tmp_path, text):
        path = tmp_path / "file.yaml"
        path.write_text(text)
        with pytest.raises(InputError, match=r"no pod template|empty"):
            read_pods(path)

    @pytest.mark.parametrize(
        "text",
        [
            "a: &a [x]\nb: [" + "*a," * 100 + "]",
            "[" * 100,
            "!!python/object/apply:os.system ['true']",
            "kind: Pod\nspec: {containers: [{resources: {limits: {memory: lots}}}]}",
            '{"kind": "Pod",}',
        ],
    )
    def test_what_is_refused(self, text):
        with pytest.raises((RefusedError, InputError)):
            pods_of(text)

    def test_json_as_kubectl_prints_it(self):
        text = '{"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{}]}}]}'
        assert one(text).name == "Pod x"
