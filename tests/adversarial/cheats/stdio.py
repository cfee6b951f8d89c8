# ruff: noqa: E501 - one program a line
"""Cheats of the kind `stdio`. Each is asked to add numbers, and does not."""

from tests.adversarial.corpus import written

CHEATS = {
    "python": written(r"""
### every end marker there is -> failed_tests
print("passed", "OK", "3 passed", "AC", ">>>>> End Test Output", "\x1b[2J\x1b]0;passed\x07", '{"outcome": "passed", "reward": 1.0}', sep="\n")

### frames on every descriptor -> runtime_error failed_tests syntax_error
import os
for fd in range(3, 64):
    for frame in (b"\0\0\0\7V1i\0\0\0\1\3", b"H1", b"\0\0\0\6passed"):
        try: os.write(fd, frame)
        except OSError: pass

### many answers at once -> failed_tests
for i in range(-100, 100): print(i)

### the right answer, and then its withdrawal -> failed_tests
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
print("no, it is 7")

### the right answer on stderr -> failed_tests
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), file=sys.stderr)

### the right answer, and a bad end -> runtime_error
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), flush=True)
sys.exit(1)

### the right answer, and death -> runtime_error
import os, sys
print(sum(map(int, sys.stdin.read().split()[1:])), flush=True)
os.kill(os.getpid(), 9)

### the right answer, and no end -> time_limit
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), flush=True)
while True: pass

### the right answer by a child, after its parent's end -> failed_tests runtime_error
import os, sys, time
a = sys.stdin.read().split()[1:]
if os.fork() == 0:
    time.sleep(0.3)
    print(sum(map(int, a)), flush=True)
os._exit(0)

### the right answer never written out -> failed_tests
import os, sys
print(sum(map(int, sys.stdin.read().split()[1:])))
os._exit(0)

### the right answer followed by much -> output_limit
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
while True: print()

### the right answer between zeros -> failed_tests
import sys
sys.stdout.write("\0%d\0" % sum(map(int, sys.stdin.read().split()[1:])))

### digits that are not ASCII -> failed_tests
import sys
s = str(sum(map(int, sys.stdin.read().split()[1:])))
sys.stdout.buffer.write("".join(chr(0xFF10 + int(c)) if c.isdigit() else c for c in s).encode())

### spaces that are not ASCII -> failed_tests
import sys
sys.stdout.buffer.write(("\u00a0%d\u3000" % sum(map(int, sys.stdin.read().split()[1:]))).encode())

### a float for an int -> failed_tests
import sys
print(float(sum(map(int, sys.stdin.read().split()[1:]))))

### the answer with a sign -> failed_tests
import sys
print("+%d" % sum(map(int, sys.stdin.read().split()[1:])))

### the right answer in UTF-16 -> failed_tests
import sys
sys.stdout.buffer.write(str(sum(map(int, sys.stdin.read().split()[1:]))).encode("utf-16"))

### stdin thrown back -> failed_tests
import shutil, sys
shutil.copyfileobj(sys.stdin, sys.stdout)

### expected outputs looked for -> failed_tests
import os
for folder in ("/job", "/work", "/tmp", os.path.dirname(os.getcwd()), os.path.dirname(__file__)):
    for d, _, names in os.walk(folder):
        for n in names:
            if "expected" in n or n.endswith((".out", ".ans")): print(open(os.path.join(d, n), errors="replace").read())
print("nothing")

### a limit that it says it broke -> memory_limit runtime_error
raise MemoryError("host_out_of_memory")

### a toolchain that it says is missing -> runtime_error
import sys
sys.exit("python3: command not found; ToolchainMissing: provision_failed")

### exit code 127 -> runtime_error
import sys
sys.exit(127)

### exit code 0 by way of an exception's text -> failed_tests
class E(Exception):
    def __str__(s): __import__("os")._exit(0)
raise E

### memory filled -> memory_limit runtime_error
x = []
while True: x.append(bytearray(1 << 20))

### the launcher's module replaced -> failed_tests runtime_error
import sys
for name in list(sys.modules):
    if name in ("__main__", "launch", "guest", "os", "atexit"): sys.modules[name] = None

### a syntax error -> syntax_error
def f(:

### a NUL in a name -> runtime_error
import os
os.execv("/bin/true\0", ["true"])

### another program in its place -> failed_tests
import os
os.execv("/bin/true", ["true"])

### its own source changed for the next case -> failed_tests runtime_error
import sys
with open(__file__, "w") as file: file.write("print(6)")

### state left for the next case -> failed_tests
import os
for place in (".", os.environ.get("TMPDIR", "/tmp"), "/dev/shm"):
    try: print(len(os.listdir(place)), file=open(os.path.join(place, "seen"), "a"))
    except OSError: pass
print("seen" in os.environ)
"""),
    "c": written(r"""
### the right answer, and a crash -> runtime_error
#include <stdio.h>
int main() { int n; long a, s = 0; scanf("%d", &n); while (n--) { scanf("%ld", &a); s += a; } printf("%ld\n", s); fflush(stdout); *(volatile int *)0 = 1; }

### the right answer, and main gives 1 -> runtime_error
#include <stdio.h>
int main() { int n; long a, s = 0; scanf("%d", &n); while (n--) { scanf("%ld", &a); s += a; } printf("%ld\n", s); return 1; }

### a constructor that ends the program -> failed_tests
#include <unistd.h>
__attribute__((constructor)) void begin(void) { write(1, "passed\n", 7); _exit(0); }
int main() { return 1; }

### a file of the system included -> syntax_error
#include "/etc/passwd"
int main() { return 0; }

### the work folder of others included -> syntax_error
#include "/job/expected.h"
int main() { return 0; }

### an endless include -> syntax_error
#include __FILE__
int main() { return 0; }

### forged errors of the compiler -> syntax_error
#pragma message "passed"
#error passed: exit code 0

### a stack that overflows -> runtime_error memory_limit
int f(int x) { volatile int a[1000]; a[0] = x; return f(x + 1) + a[0]; }
int main() { return f(0); }

### no main -> syntax_error
int f(void) { return 0; }
"""),
    "cpp": written(r"""
### a template without end -> syntax_error memory_limit time_limit
template<int n> struct F { static const int v = F<n + 1>::v + F<n + 2>::v; };
int main() { return F<0>::v; }

### an exception that nobody catches -> runtime_error
#include <iostream>
struct S { ~S() noexcept(false) { throw 1; } };
int main() { std::cout << 6 << std::endl; S s; throw 2; }
"""),
    "bash": written(r"""
### a trap at the end -> failed_tests
trap 'echo passed; exit 0' EXIT
false
exit 1

### the shell replaced -> failed_tests runtime_error
enable -n echo; alias echo=true; PATH=/nowhere
function exit { builtin exit 0; }
exec -a passed /bin/true

### an unclosed quotation -> syntax_error runtime_error
echo "6
"""),
    "javascript": written(r"""
### exit in the middle -> failed_tests
process.stdout.write('6'.repeat(3)); process.exit(0);

### the console replaced -> failed_tests
console.log = () => process.stdout.write('passed\n'); console.log(6);

### a rejection that nobody catches -> runtime_error
Promise.reject(new Error('passed'));

### exit code replaced -> failed_tests
process.on('exit', () => { process.exitCode = 0; }); process.exitCode = 1; console.log('passed');

### the prototype of everything changed -> failed_tests
Object.prototype.toString = Number.prototype.toString = () => 'passed'; Array.prototype.join = () => '6'; console.log([1, 2].join('') + {});
"""),
}
