"""How a command ends: one line on stderr and an exit code, a traceback only on request."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import typer

from attractor.errors import AttractorError, InputError, RankError, UnsupportedError

FAILED, BAD_ARGUMENT, INTERRUPTED = 1, 2, 130


def complain(message: str, command: str = "attractor") -> None:
    """One line on stderr, whatever the message holds; of several processes that would say it, the first does."""
    if first_to_say(message):
        typer.echo(f"{command}: error: {' '.join(message.split())}", err=True)


def first_to_say(message: str) -> bool:
    """Whether no other process of torchrun has said this; if nobody knows, it is said."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    import torch.distributed as processes

    try:
        # kept by torchrun itself, so that it outlives any of its processes
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = processes.TCPStore(*place, is_master=False, timeout=timedelta(seconds=2))  # pyright: ignore[reportPrivateImportUsage]
        return store.add(f"attractor/said/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}/{message}", 1) == 1
    except Exception:
        return True


@contextmanager
def ending(command: str, debug: bool, *, interrupted: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """Turn what goes wrong inside into the end of the command."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        # a store that was being written has tasks under way, and their loop would lament each of them at exit
        logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
        complain(interrupted(), command)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # whoever read our output has left; what Python still flushes at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except RankError as error:
        if not error.told:
            complain(str(error), command)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(sentence(error), command)
        raise typer.Exit(BAD_ARGUMENT if isinstance(error, (InputError, UnsupportedError)) else FAILED) from None


def sentence(error: Exception) -> str:
    """Our own errors speak for themselves, with step=... spelled as --step; any other is named."""
    if isinstance(error, AttractorError):
        return re.sub(r"\b(\w+)=\.\.\.", lambda found: "--" + found[1].replace("_", "-"), str(error))
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this run: {error or 'ask for fewer tokens or saved times'}"
    return f"{type(error).__name__}: {str(error) or 'no message'} (give --debug for the traceback)"
