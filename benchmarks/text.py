"""text.py MILLRACE [COPIES]: learning and applying byte-pair codes beside subword-nmt, WordPiece beside the package
tokenizers, each in one thread and ours in all; CPU seconds, so that others on the machine matter less. The text is that
of Multi30k below MILLRACE_DATA, COPIES times with the words of each copy marked, so that every copy brings new ones.
tests/reference/install makes the Python that this wants."""
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time

program = sys.argv[1]
copies = int(sys.argv[2]) if len(sys.argv) > 2 else 4
data = os.environ["MILLRACE_DATA"]
here = sys.executable
merges = 8000


def timed(*command):
    """Wall and CPU seconds of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


with tempfile.TemporaryDirectory() as folder:
    def path(name):
        return os.path.join(folder, name)

    text = ""
    for side in ("de", "en"):
        with gzip.open(f"{data}/multi30k/train.{side}.gz", "rt", encoding="utf-8") as file:
            text += file.read()
    with open(path("text"), "w", encoding="utf-8") as file:
        for copy in range(copies):
            mark = "" if copy == 0 else chr(ord("a") + copy % 26)
            file.write(text if not mark else "\n".join(
                " ".join(word[:1] + mark + word[1:] for word in line.split(" ")) for line in text.split("\n")))
    size = os.path.getsize(path("text")) / 1e6
    wordpiece = ("import sys\nfrom tokenizers import BertWordPieceTokenizer as T\nt = T(sys.argv[1])\n"
                 "for line in open(sys.argv[2], encoding='utf-8', newline='\\n'): t.encode(line)\n")
    ours, theirs = [program, "data", "text"], [os.path.join(os.path.dirname(here), "subword-nmt")]
    cases = [
        ("learn-bpe", [*ours, "learn-bpe", path("text"), "-o", path("codes"), "--merges", str(merges), "--overwrite"],
         [*theirs, "learn-bpe", "-i", path("text"), "-o", path("codes.theirs"), "-s", str(merges)]),
        ("apply-bpe", [*ours, "apply-bpe", path("text"), "-c", path("codes"), "-o", path("split"), "--overwrite"],
         [*theirs, "apply-bpe", "-i", path("text"), "-c", path("codes"), "-o", path("split.theirs")]),
        ("encode, WordPiece", [*ours, "encode", path("text"), "--wordpiece", path("vocab.txt"), "-o", path("w.tokens"),
                               "--overwrite"],
         [here, "-c", wordpiece, path("vocab.txt"), path("text")]),
    ]
    print(f"{size:.1f} MB of text, {merges} codes; load {os.getloadavg()[0]:.1f}")
    print("| | ours CPU s | MB/s of CPU | all threads wall s | theirs CPU s | ratio |\n|---|---|---|---|---|---|")
    for name, own, other in cases:
        if "WordPiece" in name:
            letters = sorted(set(open(path("text"), encoding="utf-8").read().lower()) - set(" \n\r\t"))
            words = [w for w in open(path("split"), encoding="utf-8").read().lower().split() if "@@" not in w]
            tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters),
                      *sorted(set(words) - set(letters))]
            with open(path("vocab.txt"), "w", encoding="utf-8") as file:
                file.write("\n".join(tokens) + "\n")
        _, cpu = timed(*own, "-j", "1")
        wall, _ = timed(*own)
        _, cpu_theirs = timed(*other)
        print(f"| {name} | {cpu:.2f} | {size / cpu:.1f} | {wall:.2f} | {cpu_theirs:.2f} | {cpu_theirs / cpu:.1f}x |")
    same = open(path("codes"), "rb").read() == open(path("codes.theirs"), "rb").read()
    print("codes are the same to the byte" if same else "CODES DIFFER")
