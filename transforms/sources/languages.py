"""The languages that a task may ask for: how a program is named, compiled and run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxes.limits import Limits


@dataclass(frozen=True, slots=True)
class Language:
    """One language. In its commands `{file}` stands for the source, `{folder}` for the folder it lies in with what the
    compiler made, and `{heap_mib}` for three quarters of the memory limit."""

    name: str
    fences: frozenset[str]
    """What a fenced block in this language is tagged with, in small letters."""
    file: str
    """Name of the source file."""
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    """Writes to the folder it is started in. Empty where nothing is compiled."""
    product: str = ""
    """What the compiler leaves there to be run: a file, or `.` for all of it; empty where it only looks for errors."""
    limits_factor: float = 1.0
    """By how much a slow start or a hungry runtime stretches the time and memory limits of a task."""
    least_memory_mib: int = 0
    """MiB that a runtime needs before a program does anything."""
    least_processes: int = 0
    """Threads that a runtime starts by itself, and room for the program's own."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables for the compiler and the program."""

    def stretched(self, limits: Limits) -> Limits:
        """A task's limits as they are for programs in this language."""
        return limits.model_copy(
            update={
                "wall_time_s": limits.wall_time_s * self.limits_factor,
                "cpu_time_s": limits.cpu_time_s * self.limits_factor,
                "memory_mib": max(math.ceil(limits.memory_mib * self.limits_factor), self.least_memory_mib),
                "processes": max(limits.processes, self.least_processes),
            }
        )


def _language(
    name: str, file: str, run: str, compile: str = "", product: str = "", *, also: str = "", factor: float = 1.0,
    **rest: Any,
) -> Language:  # fmt: skip
    commands = tuple(run.split()), tuple(compile.split())
    return Language(name, frozenset({name, *also.split()}), file, *commands, product, limits_factor=factor, **rest)


# The GNU dialects: strict ones hide M_PI, strdup and getline, which honest programs use. Go and Java are told how many
# cores to plan for: on a large host their runtimes start a thread a core, past the limit of processes. The heaps of
# Java and JavaScript are bounded below the memory limit, so that they collect garbage before they are killed for it.
_JVM = "-XX:+UseSerialGC -XX:ActiveProcessorCount=2"
_JAVAC = "-J-XX:+UseSerialGC -J-XX:ActiveProcessorCount=2 -J-Xmx512m -proc:none -encoding UTF-8"
LANGUAGES = {
    language.name: language
    for language in (
        _language("python", "main.py", "python3 {file}", also="py python3"),
        _language("c", "main.c", "./main", "gcc -O2 -std=gnu17 -o main {file} -lm", "main"),
        _language("cpp", "main.cpp", "./main", "g++ -O2 -std=gnu++20 -o main {file}", "main", also="c++ cc cxx"),
        _language(
            "javascript", "main.js", "node --max-old-space-size={heap_mib} {file}", "node --check {file}",
            also="js node", factor=2.0, least_memory_mib=128,
            environment={"OPENSSL_CONF": "/dev/null"},  # the system's may be closed to programs, and then node ends
        ),
        _language("bash", "main.sh", "bash {file}", also="sh shell"),
        _language(
            "go", "main.go", "./main", "go build -ldflags=-s -o main {file}", "main", also="golang",
            least_memory_mib=64, environment={"GOMAXPROCS": "4", "GOTOOLCHAIN": "local"},
        ),
        _language(
            "java", "Main.java", f"java {_JVM} -Xmx{{heap_mib}}m -Xss64m -cp {{folder}} Main",
            f"javac {_JAVAC} -d . {{file}}", ".", factor=2.0, least_memory_mib=256, least_processes=64,
        ),
        _language(
            "rust", "main.rs", "./main", "rustc -O --edition=2021 -C strip=symbols -o main {file}", "main", also="rs",
        ),
    )
}  # fmt: skip
"""Every language by its name in a task file."""
