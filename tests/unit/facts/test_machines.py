"""Machines by name."""

import pytest

from headway.errors import InputError
from headway.facts.machine import Machine
from headway.facts.machines import by_name, names, said, table, with_host

GIB = 1 << 30


def limits(machine: Machine, pool: str) -> dict[str, int]:
    return {limit.name: limit.bytes for limit in machine.pool(pool).limits}


def test_gb10_is_one_pool_and_shows_the_limits_that_its_users_met() -> None:
    """Ray on a DGX Spark prints 121.69GB in all, and kills above 95 % of it (public Ray kill messages)."""
    machine = by_name("GB10")
    (pool,) = machine.pools
    assert (pool.name, pool.kind) == ("node[0].unified", "unified")
    assert f"{pool.total_bytes / GIB:.2f}" == "121.69"
    assert round(pool.total_bytes / 1e9, 2) == 130.66
    assert {name: round(size / GIB, 1) for name, size in limits(machine, pool.name).items()} == {
        "Ray 0.95": 115.6, "memory": 121.7,
    }  # fmt: skip
    # a use of 115.86 of 121.69 was killed at 0.952127
    assert pool.lowest.bytes < 115.86 * GIB
    assert 115.86 / (pool.total_bytes / GIB) == pytest.approx(0.952127, abs=5e-5)
    assert machine.unified
    assert 4 * GIB < pool.floor_bytes < pool.floor_upper
    assert pool.total_bytes - pool.floor_upper <= 102.3 * GIB


def test_a_run_without_ray_has_only_the_machine_s_own_limits() -> None:
    assert set(limits(by_name("gb10").without_ray(), "node[0].unified")) == {"memory"}
    host = with_host(by_name("h200"), 64 * GIB)
    assert set(limits(host, "node[0].host")) == {"Ray 0.95", "memory"}
    assert limits(host.without_ray(), "node[0].host") == {"memory": 64 * GIB}


@pytest.mark.parametrize("name", names())
def test_every_row_holds_what_its_box_says_and_has_a_source(name: str) -> None:
    """CUDA shows a little less than the box says in GiB, more where the box means 10^9, and never under 0.9 of it."""
    row = table()[name]
    assert 0.9 * row.size < row.bytes / 1e9 < 1.08 * row.size
    assert row.source
    assert by_name(name).device_count == 1


def test_nodes_and_devices() -> None:
    node = by_name("8xh100-80")
    assert [pool.name for pool in node.pools] == ["node[0].host", *(f"node[0].device[{i}]" for i in range(8))]
    assert (node.name, node.nodes, node.device_count, node.unified) == ("8xh100-80", 1, 8, False)
    cluster = by_name("2x8xH100-80GB")
    assert (cluster.name, cluster.nodes, cluster.device_count) == ("2x8xh100-80", 2, 16)
    assert cluster.pool("node[1].device[7]").lowest.bytes == table()["h100-80"].bytes
    sparks = by_name("2xgb10")
    assert [pool.name for pool in sparks.pools] == ["node[0].unified", "node[1].unified"]


def test_host_memory_is_not_guessed() -> None:
    assert by_name("8xh100-80").pool("node[0].host").limits == ()
    assert by_name("a100-80").pool("node[0].host").total_bytes == 0
    given = with_host(by_name("2x8xh100-80"), 900 * GIB)
    assert limits(given, "node[1].host")["memory"] == 900 * GIB
    assert given.pool("node[0].device[0]") == by_name("h100-80").pool("node[0].device[0]")


def test_a_host_memory_that_is_given_is_all_the_run_s() -> None:
    own = by_name("gh200-96").pool("node[0].host")
    assert 0 < own.floor_bytes < own.total_bytes // 50
    given = with_host(by_name("gh200-96"), 200 * GIB).pool("node[0].host")
    assert (given.total_bytes, given.floor_bytes, given.floor_upper) == (200 * GIB, 0, 0)


def test_superchips_have_a_host_memory_of_their_own() -> None:
    """Two GPUs of a GB200 superchip share one CPU with 480 GB."""
    assert not any(by_name(name).unified for name in ("gb200", "gb300", "gh200-96"))
    assert [by_name(f"{n}xgb200").pool("node[0].host").total_bytes // 10**9 for n in (1, 2, 4)] == [480, 480, 960]


@pytest.mark.parametrize(("name", "size"), [("cpu-16gib", 16), ("CPU-64GiB", 64), ("cpu-7g", 7)])
def test_a_cpu_host_of_any_size(name: str, size: int) -> None:
    machine = by_name(name)
    (pool,) = machine.pools
    assert (pool.name, pool.kind, pool.total_bytes) == ("node[0].host", "host", size * GIB)
    assert limits(machine, pool.name)["memory"] == size * GIB
    assert 0 < pool.floor_bytes < pool.floor_upper <= size * GIB // 8
    assert (machine.device_count, machine.nodes) == (0, 1)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("H20-96GB", "h20"), ("RTX4090-24GB", "rtx4090"), ("rtx_4090", "rtx4090"), ("DGX Spark", "gb10"),
        ("RTX 6000 Ada", "rtx6000-ada"), ("h100 80gb", "h100-80"), ("8x B200", "8xb200"), ("A10G-24GB", "a10g"),
        ("8xA800-80G", "8xa800-80"), ("8xH100", "8xh100-80"), ("h100x8", "8xh100-80"), ("H100*8", "8xh100-80"),
        ("a100", "a100-80"), ("A800", "a800-80"), ("h800x8", "8xh800-80"), ("V100", "v100-16"), ("4090", "rtx4090"),
        ("8x4090", "8xrtx4090"), ("2x8x3090", "2x8xrtx3090"), ("RTX 5090", "rtx5090"),
        ("L40S", "l40s"), ("L40", "l40"), ("Tesla T4", "t4"),
        ("NVIDIA A800-SXM4-80GB", "a800-80"), ("8x NVIDIA H100 80GB HBM3", "8xh100-80"),
        ("h100-sxm5-80gb", "h100-80"), ("AMD Instinct MI300X", "mi300x"), ("8xMI325X", "8xmi325x"),
        ("rtx3060", "rtx3060"), ("4070", "rtx4070"), ("RTX 4080", "rtx4080"), ("5090", "rtx5090"),
        ("3060 Ti", "rtx3060-ti"),
        ("4060 Ti 16GB", "rtx4060-ti-16"), ("2x4070-ti-super", "2xrtx4070-ti-super"), ("7900 XTX", "rx7900xtx"),
        ("RTX A5000", "a5000"), ("Jetson AGX Thor", "jetson-thor"), ("24g", "24GiB"), ("2 x 24 GiB", "2x24gib"),
        ("H100 NVL", "h100-94"), ("RTX PRO 6000", "rtx-pro-6000"), ("h100:8", "8xh100-80"), ("rtx-a6000", "a6000"),
    ],
)  # fmt: skip
def test_spellings(name: str, same: str) -> None:
    assert by_name(name) == by_name(same)


def test_a_device_of_several_sizes_says_which_one_is_taken() -> None:
    assert said("8xH100") == ("machine 8xH100: h100 is taken to be the one of 80 GB, h100-80",)
    assert "16 GB" in said("V100")[0]
    assert not said("8xh100-80")
    assert not said("l40s")
    assert "two dies" in said("8xmi250x")[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("h1000", "h100-80"),
        ("8xh100-81", "h100-80"),
        ("abacus", "gb10"),
        ("cpu-0gib", "cpu-64gib"),
        ("0xh200", "0 devices"),
        ("99999x8xh200", "99999 nodes"),
        ("2x8xgb10", "16xgb10"),
        ("", "known are"),
    ],
)
def test_a_name_that_is_not_there(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        by_name(name)
    assert repr(name) in str(error.value)


def test_unified_memory_takes_no_host_memory_beside_it() -> None:
    with pytest.raises(InputError, match="leave it out"):
        with_host(by_name("gb10"), 64 * GIB)


@pytest.mark.parametrize(
    ("name", "devices", "size"),
    [("12GiB", 1, 12 * GIB), ("2x24GiB", 2, 24 * GIB), ("2x8x80GiB", 16, 80 * GIB), ("24GB", 1, 24 * 10**9)],
)
def test_a_device_by_its_memory_alone(name: str, devices: int, size: int) -> None:
    machine = by_name(name)
    assert (machine.unified, machine.device_count) == (False, devices)
    assert limits(machine, "node[0].device[0]") == {"device memory": size}
    assert machine.pool("node[0].host").limits == ()


def test_gigabytes_are_not_the_number_on_a_card_s_box() -> None:
    assert "24GiB" in said("24GB")[0]
    assert not said("24GiB")


@pytest.mark.parametrize(
    "name", ["mac-64gib", "M4 Max 64GB", "apple-m4-max-64g", "MacBook Pro M4 Max 64GB", "mac studio 64gb"]
)
def test_a_mac_is_one_pool_of_the_size_on_its_box(name: str) -> None:
    (pool,) = by_name(name).pools
    assert (pool.kind, pool.total_bytes) == ("unified", 64 * GIB)
    assert 0 < pool.floor_bytes < pool.floor_upper
    assert "Metal" in said(name)[0]


@pytest.mark.parametrize("name", ["m4-max", "mac", "0gib", "cpu-0gb", "99999999gib", "gib", "12"])
def test_what_names_no_memory_is_no_machine(name: str) -> None:
    with pytest.raises(InputError, match=r"12GiB|add it, such as m"):
        by_name(name)


@pytest.mark.parametrize(("name", "told"), [
    ("-1xh100", "begins with a minus"), ("12", "without a unit; .* is 12GiB"), ("0GiB", "has no memory"),
    ("2x0gb", "has no memory"),
])  # fmt: skip
def test_what_is_wrong_with_a_machine_is_said(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        by_name(name)


def test_a_size_with_its_unit_is_taken() -> None:
    assert by_name("12GiB").device_count == 1
