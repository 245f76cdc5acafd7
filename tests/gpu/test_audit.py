"""What the manifest records of every variant of this arch is what the driver says, occupancy included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tbe_aot
from tbe_aot_audit.pack import Pack
from tbe_aot_audit.source import Source, open_source
from tbe_aot_audit.verify import verify
from tests.gpu import installed
from tests.gpu.driver import DEVICE_ATTRIBUTES, Driver


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(Path(tbe_aot.__file__).parent)


@pytest.fixture(scope="module")
def pack(source: Source) -> Pack:
    return source.pack(source.manifest.archs[installed.arch()].pack)


@pytest.fixture(scope="module")
def driver() -> Driver:
    # The primary context, made current.
    torch.zeros(1, device="cuda")
    return Driver()


def test_what_is_installed_is_what_was_built(source: Source):
    # `pip install --target` puts the command elsewhere than RECORD says.
    findings = [
        finding
        for check in verify(source).checks
        for finding in check.findings
        if not finding.subject.endswith("/bin/tbe-aot")
    ]
    assert not findings


@pytest.mark.parametrize("kernel", sorted(installed.manifest()["kernels"]))
def test_every_variant_s_facts(kernel: str, source: Source, pack: Pack, driver: Driver):
    differing = []
    checked = 0
    major, minor = source.manifest.archs[installed.arch()].compute_capability
    for name, variant, code in source.manifest.built(installed.arch()):
        if name != kernel:
            continue
        threads = 32 * variant.num_warps
        found = driver.facts(
            pack.cubin(variant.blob), code.entry, threads=threads, dynamic_shared=code.shared_bytes
        )
        expected = {
            "registers": code.registers,
            "shared_bytes": code.static_shared_bytes,
            "local_bytes": code.stack_bytes,
            "binary_version": 10 * major + minor,
            "blocks": code.occupancy.blocks,
        }
        differing += [
            f"{variant.name}: {fact} is {getattr(found, fact)} by the driver, {value} in the manifest"
            for fact, value in expected.items()
            if getattr(found, fact) != value
        ]
        if found.max_threads < threads:
            differing.append(f"{variant.name}: {threads} threads, at most {found.max_threads}")
        checked += 1
    assert not differing, f"{len(differing)} facts of {checked} variants\n" + "\n".join(
        differing[:50]
    )
    assert checked == len(installed.built_variants(kernel))


def test_the_arch_s_limits_are_the_device_s(source: Source, driver: Driver):
    limits = source.manifest.archs[installed.arch()].limits
    found = {name: driver.device_attribute(name) for name in DEVICE_ATTRIBUTES}
    assert found == {
        "threads": 32 * limits.warps,
        "shared_bytes": limits.shared_bytes,
        "registers": limits.registers,
        "blocks": limits.blocks,
        "reserved_shared_bytes": limits.reserved_shared_bytes,
    }
