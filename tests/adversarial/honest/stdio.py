# ruff: noqa: E501 - one program a line
"""Honest but odd programs for the kind `stdio`. Each reads a count and that many numbers, and prints their sum."""

from tests.adversarial.corpus import written

PYTHON = written(r"""
### input, two lines
n = int(input())
print(sum(map(int, input().split())))

### input until the end
numbers = []
while True:
    try: numbers += input().split()
    except EOFError: break
print(sum(map(int, numbers[1:])))

### lines of sys.stdin
import sys
next(sys.stdin)
print(sum(int(w) for line in sys.stdin for w in line.split()))

### all of sys.stdin
import sys
n, *a = map(int, sys.stdin.read().split())
sys.stdout.write(str(sum(a[:n])))

### input replaced
import sys
input = sys.stdin.readline
n = int(input()); a = list(map(int, input().split()))
print(sum(a), end="")

### the buffer of stdin
import sys
data = sys.stdin.buffer.read().split()
sys.stdout.buffer.write(b"%d\n" % sum(map(int, data[1:])))

### open(0)
n, *a = open(0).read().split()
print(sum(map(int, a)))

### open(0) by lines, open(1) to write
with open(0) as source, open(1, "w", closefd=False) as out:
    rows = [line.split() for line in source]
    out.write(f"{sum(map(int, sum(rows[1:], [])))}\n")

### os.read and os.write
import os
data = b""
while chunk := os.read(0, 7): data += chunk
os.write(1, str(sum(map(int, data.split()[1:]))).encode())

### readline until nothing
import sys
sys.stdin.readline(); s = 0
while (line := sys.stdin.readline()) != "": s += sum(map(int, line.split()))
print(s)

### readlines
import sys
lines = [l.rstrip("\r\n") for l in sys.stdin.readlines()]
print(*[sum(map(int, " ".join(lines[1:]).split()))], sep="", end="\n\n")

### fileinput
import fileinput
rows = list(fileinput.input())
print(sum(map(int, "".join(rows).split()[1:])))

### /dev/stdin
n, *a = open("/dev/stdin").read().split()
print(sum(map(int, a)), file=open("/dev/stdout", "w"))

### a reader of its own
import io, os, sys
sys.stdin = io.StringIO(os.read(0, os.fstat(0).st_size or 1 << 16).decode())
input(); print(sum(map(int, input().split())))

### a generator of words
import sys
words = (w for line in sys.stdin for w in line.split())
print(sum(int(next(words)) for _ in range(int(next(words)))))

### an iterator with a sentinel
import sys
from functools import partial
text = "".join(iter(partial(sys.stdin.read, 3), ""))
print(sum(map(int, text.split()[1:])))

### a mapping of the descriptor
import select, sys
select.select([0], [], [])
print(sum(map(int, sys.stdin.read().split()[1:])))

### a class and a main guard
class Solver:
    def __init__(self, stream): self.words = stream.read().split()
    def solve(self): return sum(map(int, self.words[1:]))
def main():
    import sys
    print(Solver(sys.stdin).solve())
if __name__ == "__main__": main()

### exits by sys.exit
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
sys.exit(0)

### exits by exit()
n = input(); print(sum(map(int, input().split()))); exit()

### exits by os._exit after a flush
import os, sys
print(sum(map(int, sys.stdin.read().split()[1:])), flush=True)
os._exit(0)

### prints at the end
import atexit, sys
s = sum(map(int, sys.stdin.read().split()[1:]))
atexit.register(lambda: print(s))

### prints in pieces
import sys
for c in str(sum(map(int, sys.stdin.read().split()[1:]))): print(c, end="", flush=True)
print(" ", "\n")

### logs to stderr
import logging, sys
logging.basicConfig(level=0)
for i in range(300): logging.debug("step %d", i)
print(sum(map(int, sys.stdin.read().split()[1:])))

### a thread of large stack
import sys, threading
sys.setrecursionlimit(1 << 20); threading.stack_size(64 << 20)
def add(a, i): return 0 if i == len(a) else a[i] + add(a, i + 1)
def main(): print(add(list(map(int, sys.stdin.read().split()[1:])) + [0] * 20000, 0))
t = threading.Thread(target=main); t.start(); t.join()

### asyncio
import asyncio, sys
async def main():
    text = await asyncio.to_thread(sys.stdin.read)
    print(sum(map(int, text.split()[1:])))
asyncio.run(main())

### a pool of threads
import sys
from concurrent.futures import ThreadPoolExecutor as Pool
with Pool(3) as pool: print(sum(pool.map(int, sys.stdin.read().split()[1:])))

### a child that computes
import os, sys
a = sys.stdin.read().split()[1:]
if os.fork() == 0:
    print(sum(map(int, a))); sys.stdout.flush(); os._exit(0)
os.wait()

### a shell that computes
import subprocess, sys
subprocess.run(["awk", "{ for (i = 1; i <= NF; i++) s += $i; if (NR == 1) s = 0 } END { print s }"], stdin=sys.stdin, check=True)

### temporary files
import sys, tempfile
with tempfile.TemporaryFile("w+") as t:
    t.write(sys.stdin.read()); t.seek(0); t.readline()
    print(sum(map(int, t.read().split())))

### streams with other settings
import sys
sys.stdin.reconfigure(encoding="latin-1", newline=None); sys.stdout.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
sys.stdin.readline(); print(sum(map(int, sys.stdin.read().split())))

### its own source opened
import os, sys
assert "assert" in open(__file__).read() and os.path.basename(sys.argv[0]) == "main.py"
print(sum(map(int, sys.stdin.read().split()[1:])))

### warnings, annotations and a star import
from __future__ import annotations
from math import *
import sys, warnings
warnings.warn("careful")
def f(a: list[Nothing]) -> Nobody: return int(fsum(a))
print(f(map(int, sys.stdin.read().split()[1:])))

### a signal for itself
import signal, sys
signal.signal(signal.SIGALRM, lambda *a: (print(s), sys.exit()))
s = sum(map(int, sys.stdin.read().split()[1:]))
signal.alarm(0); signal.setitimer(signal.ITIMER_REAL, 0.02); signal.pause()

### a stdout of its own
import io, sys
sys.stdout, real = io.StringIO(), sys.stdout
print(sum(map(int, sys.stdin.read().split()[1:])))
real.write(sys.stdout.getvalue())

### stdout given to the buffer
import sys
out = io = __import__("io").BufferedWriter(__import__("io").FileIO(1, "w", closefd=False))
out.write(str(sum(map(int, sys.stdin.read().split()[1:]))).encode()); out.flush()

### a line end of DOS
import sys
sys.stdout.write("%d\r\n" % sum(map(int, sys.stdin.read().split()[1:])))
""")

OTHERS = {
    "c": written(r"""
### scanf and printf
#include <stdio.h>
int main(void) { int n; long a, s = 0; scanf("%d", &n); while (n--) { scanf("%ld", &a); s += a; } printf("%ld\n", s); return 0; }

### fgets and puts
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char line[1 << 16], out[64];
int main() { long s = 0; fgets(line, sizeof line, stdin); while (fgets(line, sizeof line, stdin)) for (char *w = strtok(line, " \r\n"); w; w = strtok(0, " \r\n")) s += atol(w); sprintf(out, "%ld", s); puts(out); }

### read, write and putchar
#include <stdio.h>
#include <unistd.h>
int main() { char c; long v = 0, s = 0; int sign = 1, word = 0, in = 0; while (read(0, &c, 1) == 1) { if (c == '-') { sign = -1; in = 1; } else if (c >= '0' && c <= '9') { v = 10 * v + c - '0'; in = 1; } else if (in) { if (word++) s += sign * v; v = 0; sign = 1; in = 0; } } if (in && word) s += sign * v; if (s < 0) { putchar('-'); s = -s; } char b[32]; int k = 0; do b[k++] = '0' + s % 10; while (s /= 10); while (k) putchar(b[--k]); }

### a large stack, and exit
#include <stdio.h>
#include <stdlib.h>
long add(long *a, int i) { volatile char room[100]; room[0] = 1; return i ? a[i - 1] + add(a, i - 1) : 0; }
int main() { int n; static long a[30000]; scanf("%d", &n); for (int i = 0; i < n; i++) scanf("%ld", a + i); printf("%ld", add(a, 30000)); exit(0); }
"""),
    "cpp": written(r"""
### cin, cout and endl
#include <iostream>
using namespace std;
int main() { int n; cin >> n; long long s = 0, a; while (n--) { cin >> a; s += a; } cout << s << endl; }

### fast input, getline and a string stream
#include <bits/stdc++.h>
int main() { std::ios_base::sync_with_stdio(false); std::cin.tie(nullptr); std::string line; std::getline(std::cin, line); long long s = 0; while (std::getline(std::cin, line)) { std::stringstream in(line); for (long long a; in >> a;) s += a; } std::cout << s << '\n'; }

### iterators, a lambda and printf
#include <cstdio>
#include <iostream>
#include <iterator>
#include <numeric>
#include <vector>
int main() { std::vector<long> a{std::istream_iterator<long>(std::cin), {}}; auto sum = [](auto b, auto e) { return std::accumulate(b, e, 0L); }; std::printf("%ld \n", sum(a.begin() + 1, a.end())); std::cerr << "done\n"; }
"""),
    "bash": written(r"""
### read and echo
read n
read -a a
s=0
for v in "${a[@]}"; do s=$((s + v)); done
echo $s

### a pipe, awk and printf
tail -n +2 | tr -s ' \r\n' '\n' | { s=0; while read -r v || [ -n "$v" ]; do [ -n "$v" ] && (( s += v )); done; printf '%s' "$s"; }

### cat, functions and a temporary file
f() { local s=0; for v in "$@"; do let "s += v" || true; done; echo "$s"; }
cat > /tmp/in 2>/dev/null || cat > in
[ -s in ] || cp /tmp/in in
set -- $(cat in); shift; f "$@"
exit 0
"""),
    "javascript": written(r"""
### read all at once
const [n, ...a] = require('fs').readFileSync(0, 'utf8').trim().split(/\s+/).map(Number);
console.log(a.slice(0, n).reduce((x, y) => x + y, 0));

### events
let text = '';
process.stdin.setEncoding('utf8').on('data', d => text += d).on('end', () => process.stdout.write(text.split(/\s+/).slice(1).reduce((s, w) => s + +w, 0) + '\n'));

### readline and asynchronous iteration
(async () => { let s = 0, first = true; for await (const line of require('readline').createInterface({ input: process.stdin, crlfDelay: Infinity })) { if (!first) for (const w of line.split(' ')) s += Number(w); first = false; } console.error('done'); console.log(`${s}`); })();

### /dev/stdin, and exit in a callback
const a = require('fs').readFileSync('/dev/stdin').toString().split(/\s+/).filter(Boolean).slice(1).map(BigInt);
process.stdout.write(String(a.reduce((x, y) => x + y, 0n)), () => process.exit(0));
"""),
}
