"""Where the cells of a sweep are computed: processes of this machine, Ray, or SLURM through submitit."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attractor.errors import InputError, UnsupportedError, missing
from attractor.registry import find
from attractor.sweeps.folder import Folder
from attractor.sweeps.systems import Experiment, Request, Row, compute

WATCH_SECONDS = 0.5  # between looks whether the driver is alive
POLL_SECONDS = 0.5  # between looks whether jobs of SLURM have ended
CONNECT_SECONDS = 5.0
OLDEST_RAY = (2, 54)  # earlier ones let anybody who reaches the dashboard run code
DIED = "the process that computed it died, perhaps for lack of memory"


@dataclass(frozen=True)
class Task:
    """Requests that one process computes, and the observables they need."""

    names: tuple[str, ...]
    requests: tuple[Request, ...]

    def split(self) -> list[Task]:
        """One task for each request."""
        return [Task(self.names, (request,)) for request in self.requests]


Result = list[Row] | str | None  # rows; the reason why there are none; None if the task has written them itself


@runtime_checkable
class Executor(Protocol):
    """Computes tasks somewhere; the results do not depend on where."""

    @property
    def name(self) -> str:
        """The name in messages and in the manifest."""
        ...

    @property
    def workers(self) -> int:
        """Number of tasks that run at the same time."""
        ...

    def check(self) -> None:
        """Raise if nothing can be computed there, before anything is."""
        ...

    def run(self, experiment: Experiment, tasks: Iterable[Task], folder: Folder) -> Iterator[tuple[Task, Result]]:
        """Compute tasks and yield their results in any order."""
        ...


def run_task(experiment: Experiment, task: Task) -> list[Row]:
    """Compute a task in this process."""
    observe = {name: experiment.observe[name] for name in task.names}
    return compute(dataclasses.replace(experiment, observe=observe), task.requests)


def fail(task: Task, reason: str) -> list[Row]:
    """Rows of a task that could not be computed."""
    return [Row(request, reason) for request in task.requests]


def count_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """Processes of this machine; with one of them, or on a GPU, this process itself.

    Parameters
    ----------
    processes : how many; None for one per core.
    """

    processes: int | None = None
    name: str = "local"

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise InputError(f"a sweep needs at least one process, got {self.processes}")

    @property
    def workers(self) -> int:
        return count_cores() if self.processes is None else self.processes

    def check(self) -> None:
        pass

    def run(self, experiment: Experiment, tasks: Iterable[Task], folder: Folder) -> Iterator[tuple[Task, Result]]:
        waiting = deque(tasks)
        many = sum(len(task.requests) for task in waiting) > 1
        # one process keeps a GPU busy: its ensembles are larger
        if (self.workers == 1 and self.processes is not None) or experiment.device != "cpu" or not many:
            for task in waiting:
                yield task, run_task(experiment, task)
            return
        suspects: deque[Task] = deque()  # were being computed when a process died
        while waiting or suspects:
            alone = not waiting
            queue, suspects = (suspects, deque()) if alone else (waiting, suspects)
            lost = yield from self._run_pool(experiment, queue, alone)
            if alone:
                for task in lost:
                    yield task, fail(task, DIED)
                suspects = queue
            else:
                suspects.extend(piece for task in lost for piece in task.split())

    def _run_pool(self, experiment: Experiment, queue: deque[Task], alone: bool) -> Iterator[tuple[Task, Result]]:
        """Compute the tasks of a queue until it is empty or a process dies; return those that were being computed then."""
        method = "fork" if "fork" in get_all_start_methods() else None
        workers = min(1 if alone else self.workers, len(queue))
        pool = ProcessPoolExecutor(workers, get_context(method), _begin_worker, (experiment, os.getpid()))
        running: dict[Future[list[Row]], Task] = {}
        try:
            while queue or running:
                while queue and len(running) < (1 if alone else 2 * workers):
                    with warnings.catch_warnings():  # of Python 3.12 on threads before a fork: workers use one thread
                        warnings.simplefilter("ignore", DeprecationWarning)
                        running[pool.submit(_run_in_worker, queue[0])] = queue[0]
                    queue.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    found = future.result()
                    yield running.pop(future), found
        except BrokenProcessPool:
            finished = [
                (future, task) for future, task in running.items() if future.done() and future.exception() is None
            ]
            for future, _ in finished:
                yield running.pop(future), future.result()
            return list(running.values())
        finally:
            processes = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=not (queue or running), cancel_futures=True)
            if queue or running:
                for process in processes:
                    process.terminate()
        return []


_experiment: Experiment | None = None  # of a worker process


def _begin_worker(experiment: Experiment, parent: int) -> None:
    global _experiment
    _experiment = experiment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends the workers

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_in_worker(task: Task) -> list[Row]:
    assert _experiment is not None
    return run_task(_experiment, task)


@dataclass(frozen=True)
class Ray:
    """Tasks of Ray: a cluster that is started on this machine, or an existing one.

    Parameters
    ----------
    address : of an existing cluster, "host:port", "ray://host:port" or "auto"; None starts one here.
    processes : tasks at the same time on this machine; None for one per core.
    cpus, gpus : resources of one task.
    retries : how often a task is started again after its worker died.
    dashboard : whether a cluster that is started here has a dashboard.
    """

    address: str | None = None
    processes: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3
    dashboard: bool = False
    name: str = "ray"

    @property
    def workers(self) -> int:
        return self.processes or count_cores()

    def check(self) -> None:
        if not self._import().is_initialized() and self.address is not None:
            check_address(self.address)

    def run(self, experiment: Experiment, tasks: Iterable[Task], folder: Folder) -> Iterator[tuple[Task, Result]]:
        ray = self._import()
        started = not ray.is_initialized()
        if started:
            self._start(ray)
        try:
            yield from self._run(ray, experiment, tasks)
        finally:
            if started:
                ray.shutdown()

    def _import(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise missing("ray", "ray") from None
        version = tuple(int(part) for part in ray.__version__.split(".")[:2])
        if version < OLDEST_RAY:
            raise UnsupportedError(
                f"ray {ray.__version__} lets others run code on this machine: install ray {'.'.join(map(str, OLDEST_RAY))} or newer"
            )
        return ray

    def _start(self, ray: Any) -> None:
        if self.address is None:
            processes = self.processes or max(1, int(count_cores() // self.cpus))
            cpus = max(1, round(processes * self.cpus))
            gpus = {"num_gpus": self.gpus} if self.gpus else {}
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=self.dashboard,
                log_to_driver=False,
                logging_level="ERROR",
                **gpus,
            )
            return
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            raise UnsupportedError(
                f"the Ray cluster {self.address} cannot be used: {' '.join(str(error).split())}"
            ) from None

    def _run(self, ray: Any, experiment: Experiment, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries)(_run_remote)
        shared = ray.put(_Shipped(experiment))
        waiting, running = deque(tasks), {}
        most = 2 * max(1, int(ray.cluster_resources().get("CPU", self.workers) // max(self.cpus, 0.01)))
        while waiting or running:
            while waiting and len(running) < most:
                task = waiting.popleft()
                running[remote.remote(shared, task)] = task
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    yield (
                        task,
                        fail(task, f"{type(error.cause).__name__}: {error.cause}" if error.cause else str(error)),
                    )
                except ray.exceptions.RayError:  # its worker died again and again
                    if len(task.requests) > 1:
                        waiting.extend(task.split())
                    else:
                        yield task, fail(task, DIED)


@dataclass(frozen=True)
class _Shipped:
    """An experiment in another process; functions of the user's script are sent by value."""

    experiment: Experiment


def _run_remote(shipped: _Shipped, task: Task) -> list[Row]:
    return run_task(shipped.experiment, task)


def check_address(address: str) -> None:
    """Raise if nothing answers at the address of a Ray cluster."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"the address of a Ray cluster is host:port, such as 10.0.0.1:6379, or auto; got {address!r}")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UnsupportedError(
            f"no Ray cluster answers at {address} ({why}): start one with `ray start --head`, or leave out the address"
        ) from None


@dataclass(frozen=True)
class Slurm:
    """Job arrays of SLURM, through submitit; every job writes its cells into the folder, which all machines must share.

    Parameters
    ----------
    concurrency : jobs of the array at the same time.
    minutes : time limit of a job; a job that reaches it is queued again, and continues with the cells that are left.
    jobs : number of jobs among which the cells are divided; None for four times the concurrency.
    cpus, gpus : resources of a job.
    partition : name of the partition; None for the default one.
    cluster : "slurm", or "local" for processes of submitit on this machine.
    parameters : further parameters of submitit's executor, such as {"slurm_account": "physics"}.
    """

    concurrency: int = 16
    minutes: int = 60
    jobs: int | None = None
    cpus: int = 1
    gpus: int = 0
    partition: str | None = None
    cluster: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str = "slurm"

    @property
    def workers(self) -> int:
        return self.concurrency

    def check(self) -> None:
        if find_spec("submitit") is None:
            raise missing("submitit", "slurm")
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UnsupportedError(
                "SLURM cannot be used here: there is no command sbatch; take the executor local or ray"
            )

    def run(self, experiment: Experiment, tasks: Iterable[Task], folder: Folder) -> Iterator[tuple[Task, Result]]:
        import submitit  # pyright: ignore[reportMissingImports]

        waiting = list(tasks)
        count = min(len(waiting), self.jobs or 4 * self.concurrency)
        if not count:
            return
        executor = submitit.AutoExecutor(folder=folder.path / "jobs", cluster=self.cluster)
        settings: dict[str, Any] = {"timeout_min": self.minutes, "cpus_per_task": self.cpus, "name": "attractor-sweep"}
        if self.cluster == "slurm":
            settings["slurm_array_parallelism"] = self.concurrency
            settings |= {"slurm_partition": self.partition} if self.partition else {}
            settings |= {"gpus_per_node": self.gpus} if self.gpus else {}
        executor.update_parameters(**settings, **self.parameters)
        for task in waiting:  # of cells that failed before
            folder.part_path(task.requests, task.names).unlink(missing_ok=True)
        parts = [waiting[first::count] for first in range(count)]
        jobs = [_Job(experiment, tuple(part), str(folder.path.resolve())) for part in parts]
        yield from self._follow(executor, jobs)

    def _follow(self, executor: Any, jobs: Sequence[_Job]) -> Iterator[tuple[Task, Result]]:
        """Submit jobs and yield their tasks as they end."""
        limit = self.concurrency if self.cluster != "slurm" else len(jobs)  # submitit's own processes have no limit
        queue, running = deque(jobs), {}
        try:
            while queue or running:
                batch = [queue.popleft() for _ in range(min(len(queue), limit - len(running)))]
                if batch:
                    with executor.batch():
                        submitted = [executor.submit(work) for work in batch]
                    running |= dict(zip(submitted, batch, strict=True))
                ended = [job for job in running if job.done()]
                for job in ended:
                    work = running.pop(job)
                    error = job.exception()
                    for task in work.tasks:
                        done = error is None or work.folder_object.has_part(task.requests, task.names)
                        yield task, None if done else f"job {job.job_id} ended: {' '.join(str(error).split())[:300]}"
                if not ended:
                    time.sleep(POLL_SECONDS)
        except BaseException:
            for job in running:
                with suppress(Exception):
                    job.cancel()
            raise


@dataclass(frozen=True)
class _Job:
    """Tasks of one job. A job that is started again computes those whose files are not there."""

    experiment: Experiment
    tasks: tuple[Task, ...]
    folder: str

    @property
    def folder_object(self) -> Folder:
        return Folder(Path(self.folder))

    def __call__(self) -> int:
        folder = self.folder_object
        for task in self.tasks:
            if not folder.has_part(task.requests, task.names):
                folder.write_part(run_task(self.experiment, task), task.names)
        return len(self.tasks)

    def checkpoint(self) -> Any:
        """What submitit queues after a time-out: the same job."""
        import submitit  # pyright: ignore[reportMissingImports]

        return submitit.helpers.DelayedSubmission(self)


EXECUTORS: dict[str, Callable[..., Executor]] = {"local": Local, "ray": Ray, "slurm": Slurm}


def executor_named(executor: str | Executor, workers: int | None = None) -> Executor:
    """Return the executor of a name, with so many workers; an executor is returned unchanged."""
    if isinstance(executor, str):
        kind = find(executor, EXECUTORS, "executor")
        if workers is not None and workers < 1:
            raise InputError(f"a sweep needs at least one worker, got {workers}")
        if kind is Slurm:
            return Slurm() if workers is None else Slurm(concurrency=workers)
        return kind(processes=workers)
    if not isinstance(executor, Executor):
        raise InputError(f"executor is 'local', 'ray', 'slurm' or an object such as Ray(address=...), got {executor!r}")
    if workers is not None:
        raise InputError("give the number of workers to the executor itself, such as Local(4)")
    return executor
