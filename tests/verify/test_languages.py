# ruff: noqa: E501, RUF001 - one program a line; compilers quote with real quotation marks
"""Programs in every language, their compilers, and images that lack them."""

import asyncio
from dataclasses import replace

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxProvider, SandboxRequest
from tests.sandboxes.conformance.backends import Backend, find, names, required
from tests.sandboxes.real_images import real_image
from transforms.episode import CaseReport
from transforms.sources.kinds.stdio import Case, Stdio
from transforms.sources.languages import LANGUAGES
from transforms.sources.task import Task
from transforms.verify import compile
from transforms.verify.compile import COMPILER_MESSAGE_CHARS, ToolchainMissing
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=5, cpu_time_s=3, memory_mib=256, processes=32, output_kib=64, file_mib=4, disk_mib=8)
CASES = (Case("small", "1 2\n3 4\n", "10\n"), Case("negative", "-5\n", "-5"), Case("nothing", "", "0"))
# Programs that print the sum of the numbers they read, in the ways that people read.
SUMS = {
    "python": ["import sys\nprint(sum(map(int, sys.stdin.read().split())))"],
    "c": [
        '#include <stdio.h>\nint main() { long a, s = 0; while (scanf("%ld", &a) == 1) s += a; printf("%ld\\n", s); }',
        '#include <stdio.h>\n#include <stdlib.h>\n#include <ctype.h>\nint main(void) { int c; long s = 0; char w[32]; int n = 0; do { c = getchar(); if (c == EOF || isspace(c)) { w[n] = 0; if (n) s += atol(w); n = 0; } else w[n++] = c; } while (c != EOF); printf("%ld", s); return 0; }',
        '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint main() { char *l = NULL; size_t n; long s = 0; while (getline(&l, &n, stdin) > 0) for (char *t = strtok(l, " \\n"); t; t = strtok(NULL, " \\n")) s += strtol(t, NULL, 10); printf("%ld\\n", s); }',
    ],
    "cpp": [
        "#include <bits/stdc++.h>\nusing namespace std;\nint main() { ios::sync_with_stdio(false); cin.tie(nullptr); long long a, s = 0; while (cin >> a) s += a; cout << s; }",
        "#include <iostream>\n#include <sstream>\n#include <string>\nint main() { std::string l; long s = 0, a; while (std::getline(std::cin, l)) { std::istringstream in(l); while (in >> a) s += a; } std::cout << s << std::endl; }",
    ],
    "javascript": [
        "const t = require('fs').readFileSync(0, 'utf8'); console.log(t.split(/\\s+/).filter(Boolean).map(Number).reduce((a, b) => a + b, 0))",
        "const r = require('readline').createInterface({ input: process.stdin }); let s = 0; r.on('line', l => { for (const w of l.split(' ')) s += Number(w) }); r.on('close', () => console.log(s))",
        "let t = ''; process.stdin.on('data', d => t += d); process.stdin.on('end', () => process.stdout.write(String(t.split(/\\s+/).reduce((a, b) => a + +b, 0))))",
        "(async () => { let s = 0; for await (const l of require('readline').createInterface({ input: process.stdin })) s += l.split(' ').reduce((a, b) => a + +b, 0); console.log(s) })()",
    ],
    "bash": [
        "s=0; while read -r -a n; do for a in \"${n[@]}\"; do s=$((s + a)); done; done; echo $s",
        "cat | tr ' ' '\\n' | awk '{ s += $1 } END { print s + 0 }'",
    ],
    "go": [
        'package main\nimport "fmt"\nfunc main() { s, a := 0, 0; for { if _, e := fmt.Scan(&a); e != nil { break }; s += a }; fmt.Println(s) }',
        'package main\nimport ("bufio"; "fmt"; "os"; "strconv")\nfunc main() { r := bufio.NewScanner(os.Stdin); r.Split(bufio.ScanWords); s := 0; for r.Scan() { a, _ := strconv.Atoi(r.Text()); s += a }; fmt.Println(s) }',
    ],
    "java": [
        "import java.util.*;\npublic class Main { public static void main(String[] x) { Scanner in = new Scanner(System.in); long s = 0; while (in.hasNextLong()) s += in.nextLong(); System.out.println(s); } }",
        "import java.io.*;\nimport java.util.stream.*;\nclass Main { static class Sum { long s; } public static void main(String[] x) throws IOException { var sum = new Sum(); new BufferedReader(new InputStreamReader(System.in)).lines().forEach(l -> { for (String w : l.split(\" \")) sum.s += Long.parseLong(w); }); System.out.println(sum.s); } }",
    ],
    "rust": [
        'use std::io::*;\nfn main() { let mut t = String::new(); stdin().read_to_string(&mut t).unwrap(); println!("{}", t.split_whitespace().map(|a| a.parse::<i64>().unwrap()).sum::<i64>()); }',
        'use std::io::BufRead;\nfn main() { let s: i64 = std::io::stdin().lock().lines().map(|l| l.unwrap().split(\' \').map(|a| a.parse::<i64>().unwrap()).sum::<i64>()).sum(); print!("{s}"); }',
    ],
}  # fmt: skip
LARGE = ("go", "java", "rust")


def grade(
    language: str, program: str, *cases: Case, provider: SandboxProvider | None = None, image: str = "",
    limits: Limits = LIMITS,
) -> CaseReport:  # fmt: skip
    """In the image that has the language. Skips without."""
    image = image or ("toolchains" if language in LARGE else "host")
    if image == "toolchains":
        real_image(image)
    task = Task("t", "add", Stdio(cases or CASES, language))
    request = SandboxRequest(image=image, limits=limits)
    return asyncio.run(run_check(provider or Bubblewrap(), task, program, request))


def outcomes(report: CaseReport) -> list[str]:
    return [str(result.outcome) for result in report.results]


@pytest.mark.parametrize("language", SUMS)
def test_honest_programs_pass(language: str):
    assert set(SUMS) == set(LANGUAGES)
    for program in SUMS[language]:
        report = grade(language, program)
        assert outcomes(report) == ["passed"] * 3, report
        assert (report.compiler_message is None) == (not LANGUAGES[language].compile)


DEEP = {
    "c": '#include <stdio.h>\n__attribute__((noinline)) long g(long n, volatile char *above) { volatile char room[48]; room[n & 31] = 1; return n == 0 ? 0 : 1 + g(n - 1, room) + 0 * room[n & 31] + 0 * above[0]; }\nint main() { volatile char room[1] = {0}; printf("%ld", g(500000, room)); }',
    "java": "class Main { static int g(int n) { return n == 0 ? 0 : 1 + g(n - 1); } public static void main(String[] x) { System.out.println(g(500000)); } }",
    "go": 'package main\nimport "fmt"\nfunc g(n int) int { if n == 0 { return 0 }; return 1 + g(n-1) }\nfunc main() { fmt.Println(g(500000)) }',
}  # fmt: skip
GARBAGE = {
    "java": "class Main { public static void main(String[] x) { byte[][] ring = new byte[270][]; for (int i = 0; i < 5000; i++) { ring[i % 270] = new byte[1 << 20]; ring[i % 270][i] = 1; } System.out.println(ring[4999 % 270][4999] * 500000); } }",
    "javascript": "const ring = []; for (let i = 0; i < 1500; i++) ring[i % 100] = new Array(1 << 17).fill(i); console.log(ring[99][0] === 1499 ? 500000 : 0)",
}  # fmt: skip


@pytest.mark.parametrize(("language", "program"), [*DEEP.items(), *GARBAGE.items()])
def test_deep_recursion_and_garbage_are_honest(language: str, program: str):
    report = grade(language, program, Case("a", "", "500000"))
    assert outcomes(report) == ["passed"], report


@pytest.mark.parametrize(
    ("language", "program", "outcome", "words"),
    [
        ("c", "int main() { return 3; }", "runtime_error", "exit code 3"),
        ("c", "int main() { *(volatile int *)0 = 1; }", "runtime_error", "ended by signal 11"),
        ("c", "int f(int n) { volatile char room[512]; room[n & 511] = 1; return f(n + 1) + room[0]; }\nint main() { return f(0); }", "runtime_error", "ended by signal 11"),
        ("c", "#include <stdlib.h>\n#include <string.h>\nint main() { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }", "memory_limit", ""),
        ("c", "#include <unistd.h>\nint main() { write(1, \"\\xff\\xfe\", 2); }", "failed_tests", "wrong output"),
        ("c", "#include <signal.h>\n#include <stdio.h>\nint main() { puts(signal(SIGPIPE, SIG_DFL) == SIG_DFL ? \"10\" : \"ignored\"); }", "passed", ""),
        ("javascript", "throw new Error('x')", "runtime_error", "exit code 1"),
        ("javascript", "process.exit(127)", "runtime_error", "exit code 127"),
        ("javascript", "const a = []; for (;;) a.push(new Array(1000).fill(a.length))", "memory_limit", ""),
        ("bash", "kill -9 $$", "runtime_error", "ended by signal 9"),
        ("bash", "nonsense", "runtime_error", "exit code 127: "),
        ("bash", "if", "runtime_error", "exit code 2: "),
        ("java", "class Main { public static void main(String[] x) { throw new RuntimeException(\"x\"); } }", "runtime_error", "exit code 1"),
        ("java", "class Main { public static void main(String[] x) { var l = new java.util.ArrayList<long[]>(); for (;;) l.add(new long[1 << 17]); } }", "memory_limit", ""),
        ("java", "class Other { public static void main(String[] x) { } }", "runtime_error", "exit code 1"),
        ("go", "package main\nfunc main() { panic(1) }", "runtime_error", "exit code 2"),
        ("go", "package other\nfunc F() { }", "runtime_error", "exit code 126: ./main: Exec format error"),
        ("rust", "fn main() { panic!(\"x\") }", "runtime_error", "exit code 101"),
    ],
)  # fmt: skip
def test_what_a_program_comes_to(language: str, program: str, outcome: str, words: str):
    (result,) = grade(language, program, CASES[0]).results
    assert (str(result.outcome), words in result.message) == (outcome, True), result


@pytest.mark.parametrize(
    ("language", "program", "message", "location"),
    [
        ("c", "int main() {\n  return x;\n}", "main.c:2:10: error: ‘x’ undeclared (first use in this function)", "line 2"),
        ("c", "", "(.text+0x17): undefined reference to `main'", None),
        ("c", "int main() { undefined(); }", "main.c:(.text.startup+0x7): undefined reference to `undefined'", "line 1"),
        ("cpp", "#include <nothing.h>\nint main() {}", "main.cpp:1:10: fatal error: nothing.h: No such file or directory", "line 1"),
        ("javascript", "var x = ;", "SyntaxError: Unexpected token ';'", "line 1"),
        ("go", "package main\nfunc main() { x }", "main.go:2:15: undefined: x", "line 2"),
        ("java", "class Main {\n  int x = 1\n}", "Main.java:2: error: ';' expected", "line 2"),
        ("rust", "fn main() {\n    x;\n}", "error[E0425]: cannot find value `x` in this scope", "line 2"),
        ("c", "x = '\ud800'", "main.c:1:1: error: expected ‘,’ or ‘;’ at end of input", "line 1"),
    ],
)  # fmt: skip
def test_a_compile_error_is_kept(language: str, program: str, message: str, location: str | None):
    report = grade(language, program)
    assert outcomes(report) == ["syntax_error"] * 3
    assert report.compiler_message
    assert (report.results[2].message, report.results[2].location) == (message, location), report.compiler_message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "program", "outcome"),
    [
        ("c", '#include "main.c"', "syntax_error"),
        ("c", "#include </dev/zero>", "memory_limit"),
        ("cpp", "template<int n> struct F { typedef typename F<n+1>::T T; }; F<0>::T x;", "syntax_error"),
        ("cpp", "template<int n, int m> struct F { static const int v = F<n-1, 2*m>::v + F<n-1, 2*m+1>::v; }; template<int m> struct F<0, m> { static const int v = m; };\nint main() { return F<24, 0>::v; }", "memory_limit"),
        ("cpp", "constexpr int f(int n) { return n < 2 ? 1 : f(n - 1) + f(n - 2); }\nconstexpr int x = f(60);\nint main() { return x; }", "syntax_error"),
        ("c", "char big[1 << 30] = {1};\nint main() { return big[0]; }", "disk_limit"),
        ("cpp", f"#warning {'w' * 200}\n" * 5000, "output_limit"),
    ],
)  # fmt: skip
def test_a_bomb_for_the_compiler_is_the_programs_doing(
    language: str, program: str, outcome: str, monkeypatch: pytest.MonkeyPatch
):
    limits = compile.COMPILE_LIMITS.model_copy(update={"memory_mib": 256, "wall_time_s": 20.0})
    monkeypatch.setattr(compile, "COMPILE_LIMITS", limits)
    report = grade(language, program)
    assert outcomes(report) == [outcome] * 3, report
    assert report.compiler_message is not None
    assert len(report.compiler_message) <= COMPILER_MESSAGE_CHARS


def test_a_compiler_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch):
    assert outcomes(grade("cpp", "int main() { return 1; }")) == ["runtime_error"] * 3  # the compiler is known to work
    monkeypatch.setattr(compile, "COMPILE_LIMITS", compile.COMPILE_LIMITS.model_copy(update={"wall_time_s": 1.0}))
    spin = "constexpr unsigned f(unsigned n) { unsigned s = 0; for (int i = 0; i < 2000; i++) for (int j = 0; j < 2000; j++) s += i ^ j ^ n; return s; }\n"
    report = grade("cpp", spin + "".join(f"constexpr unsigned x{n} = f({n});\n" for n in range(9)) + "int main() {}")
    assert outcomes(report) == ["time_limit"] * 3


def test_no_case_of_the_program_meets_the_compiler_or_another_case():
    program = '#include <stdio.h>\n#include <stdlib.h>\nint main() { fflush(stdout); system("ls -A . $TMPDIR | grep -v : | sort; touch here $TMPDIR/there"); }'
    report = grade("c", program, *(Case(str(number), "", "\nmain") for number in range(2)))
    assert outcomes(report) == ["passed"] * 2, report


def test_what_the_compiler_made_takes_none_of_the_programs_room():
    little = LIMITS.model_copy(update={"file_mib": 1, "disk_mib": 1})
    program = 'package main\nimport ("fmt"; "os")\nfunc main() { e := os.WriteFile("big", make([]byte, 1000000), 0o600); fmt.Println(e) }'
    assert outcomes(grade("go", program, Case("a", "", "<nil>"), limits=little)) == ["passed"]


class TestToolchains:
    """What an image lacks is reported, and is no program's fault."""

    @pytest.mark.parametrize(("language", "words"), [("rust", "rustc"), ("go", "go: "), ("java", "javac: ")])
    def test_a_missing_one_is_reported(self, language: str, words: str):
        with pytest.raises(ToolchainMissing, match="headrace sandbox build toolchains") as caught:
            grade(language, SUMS[language][0], image=real_image("base").name)
        assert words in caught.value.evidence
        assert caught.value.outcome == "provision_failed"

    @pytest.mark.parametrize("broken", [{"compile": ("false",)}, {"compile": ("true",)}, {"run": ("false",)}])
    def test_a_broken_one_is_reported(self, broken: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(compile, "_proven", set())
        monkeypatch.setitem(LANGUAGES, "c", replace(LANGUAGES["c"], **broken))
        with pytest.raises(ToolchainMissing, match="known to be good"):
            grade("c", SUMS["c"][0])

    def test_a_wrong_program_is_no_sign_of_a_missing_one(self):
        for program in ("process.exit(127)", "console.log(process.execPath); process.exit(126)", "}"):
            assert "passed" not in outcomes(grade("javascript", program))

    def test_limits_below_what_the_language_needs_are_reported(self):
        tiny = LIMITS.model_copy(update={"processes": 2})
        with pytest.raises(ToolchainMissing, match="process_limit"):
            grade("javascript", SUMS["javascript"][0], limits=tiny)


SAME = {
    ("python", "import os, time\nprint(10, flush=True)\nif os.fork() == 0: os.setsid(); time.sleep(60)"): "passed",
    ("python", "print(11)"): "failed_tests",
    ("python", "x = = 1"): "syntax_error",
    ("python", "import sys\nsys.exit(input())"): "runtime_error",
    ("python", "x = []\nwhile True: x.append(bytearray(1 << 20))"): "memory_limit",
    ("bash", SUMS["bash"][0]): "passed",
    ("c", SUMS["c"][0]): "passed",
    ("c", "int main() { return x; }"): "syntax_error",
    ("c", "int main() { *(volatile int *)0 = 1; }"): "runtime_error",
    ("c", "int main() { for (;;) ; }"): "time_limit",
    ("c", "#include <stdio.h>\nint main() { for (;;) puts(\"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\"); }"): "output_limit",
    ("c", "#include <unistd.h>\nint main() { for (;;) if (fork() == 0) pause(); }"): "process_limit",
    ("cpp", SUMS["cpp"][1]): "passed",
    ("javascript", SUMS["javascript"][0]): "passed",
}  # fmt: skip
UNUSABLE = {
    "bubblewrap-rlimits": {"javascript"},  # it maps more than the limit, which is on addresses there
    "bubblewrap-rootless": {"javascript"},
    "subprocess": {"c", "cpp"},  # it does not show /usr/include
    "subprocess-rlimits": {"c", "cpp", "javascript"},
    "subprocess-rootless": {"c", "cpp", "javascript"},
}


@pytest.fixture(params=names())
def backend(request: pytest.FixtureRequest) -> Backend:
    found = find(request.param)
    if isinstance(found, str):
        (pytest.fail if request.param in required() else pytest.skip)(found)
    return found


@pytest.mark.slow
def test_programs_get_the_same_outcomes(backend: Backend):
    limits = LIMITS.model_copy(update={"wall_time_s": 3.0, "cpu_time_s": 2.0})

    def outcome(language: str, program: str) -> str:
        try:
            (result,) = grade(
                language, program, CASES[0], provider=backend.provider, image=backend.image, limits=limits
            ).results
        except ToolchainMissing:
            return "missing"
        return str(result.outcome)

    unusable = UNUSABLE.get(backend.name, set())
    found = {(language, program): outcome(language, program) for language, program in SAME}
    assert found == {key: "missing" if key[0] in unusable else wanted for key, wanted in SAME.items()}
