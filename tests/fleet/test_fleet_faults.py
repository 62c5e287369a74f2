"""Three nodes on this machine, jobs on all of them, and faults at a random moment of a job each."""

from __future__ import annotations

from collections.abc import Iterator

import api_server
import fleet_cluster
import numpy as np
import postgres_server
import pytest
from fleet_faults import KINDS, PROBLEM, Count, Lab

from tilewright import Client
from tilewright.errors import TilewrightError


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    binaries = postgres_server.find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: install the package 'postgresql'")
    folder = tmp_path_factory.mktemp("fleet")
    with postgres_server.running(binaries) as database, fleet_cluster.running(folder) as fleet:
        made = Lab(fleet, database)
        yield made
        made.close()


def test_every_node_is_a_device_and_takes_jobs(lab: Lab) -> None:
    assert {one.name for one in lab.client.devices()} == {"n0/host", "n1/host", "n2/host"}
    ids = [lab.submit(trials=16) for _ in range(4)]
    holders = set()

    def ended() -> bool:
        holders.update(lab.holder(one) for one in ids)
        return all(lab.job(one).status.final for one in ids)

    assert lab.wait(ended)
    assert len(holders - {None}) >= 2, "they ran side by side"
    assert [lab.job(one).error for one in ids] == [None] * 4


def test_a_job_is_cancelled_through_another_replica(lab: Lab) -> None:
    other = lab.fleet.serve("other", **lab.settings)
    try:
        job = lab.client.tune(PROBLEM, max_trials=5000, seed=1, wait=False)
        assert lab.wait(lambda: lab.holder(job.id) is not None)
        with Client(other.url) as client:
            client.cancel(job.id)
            assert client.wait(job.id).status == "cancelled"
    finally:
        assert other.stop() == 0
        api_server.finish(other)


def test_gemm_names_the_node(lab: Lab) -> None:
    with pytest.raises(TilewrightError, match="is on a node of the fleet"):
        lab.client.gemm(np.zeros((8, 8), "float32"), np.zeros((8, 8), "float32"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_trial_is_lost_or_run_twice_and_the_winner_stays(lab: Lab, kind: str) -> None:
    count = Count(kind)
    for _ in range(20):  # a job may end before its moment, or be between two trials of a helper
        lab.strike(count)
        if count.moments:
            break
    assert (count.moments, count.lost, count.doubled, count.unfinished, count.changed) == (1, 0, 0, 0, 0)
    assert count.refused == 1 or kind != "stopped"
