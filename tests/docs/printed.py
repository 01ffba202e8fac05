#!/usr/bin/env python3
"""Holds what README.md and the pages of docs/ print against the commands that print it.

    printed.py LOCKSTEP SOURCE PAGE...      a folder stands for its pages

In a block of code, a line that begins with "$ lockstep" is a command, and the lines up to the next one, or to the end of the
block, are what it prints: standard output and standard error together, without times of day. Words are compared, so a page may
break a long line. "..." as a word stands for anything; at the end of a word ("tak...") for the rest of that line.
Comments above a block say more, and may take several lines:

    <!-- printed: varies planned in \\S+ s -->           what this expression finds differs by machine or time
    <!-- printed: after lockstep data prepare ... -->    a command line that comes first
    <!-- printed: elsewhere one H100, driver 13.0 -->    measured where this test does not run; it is listed, not run

Numbers in prose, wherever the comment stands:

    <!-- holds: lockstep plan llama3_8b --cluster h100 => 31.2 GiB | 1.61 s -->

The command must print each of the texts between "|", and the page must have each of them too.

Every other line of a block that begins with "lockstep" must have a command, flags and keys that exist.
"""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

COMMENT = re.compile(r"<!-- printed: (varies|after|elsewhere)\s+(.*?) -->", re.S)
HOLDS = re.compile(r"<!-- holds: (.*?) => (.*?) -->", re.S)
TIME_OF_DAY = re.compile(r"^\[\d\d:\d\d:\d\d\] ", re.M)
FIRST_LINE = re.compile(r"(\$ )?(lockstep )")


class Block:
    def __init__(self, page, line):
        self.page, self.line, self.lines = page, line, []
        self.varies, self.after, self.elsewhere = [], [], ""

    def where(self):
        return f"{self.page}:{self.line}"

    def commands(self):
        """[(command, what the page prints of it)]"""
        out = []
        for line in self.lines:
            if line.startswith("$ "):
                out.append((line[2:], []))
            elif out and out[-1][0].endswith("\\"):
                out[-1] = (out[-1][0][:-1] + line.strip(), [])
            elif out:
                out[-1][1].append(line)
        return out


def blocks_of(page, text):
    """Blocks of code, indented by four columns or fenced, with the comments above them."""
    out, notes, fenced, block, comment = [], [], False, None, ""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if comment or line.strip().startswith("<!-- printed: ") and not fenced:
            comment = f"{comment} {line.strip()}".strip()
            if comment.endswith("-->"):
                notes.append(COMMENT.match(comment).groups())
                comment = ""
            continue
        is_fence = line.strip().startswith("```")
        is_code = fenced and not is_fence or line.startswith("    ") and line.strip() and not fenced
        if is_fence:
            fenced = not fenced
            if not fenced:
                block, notes = None, []
            continue
        if not is_code:
            if block and not line.strip() and number < len(lines) and lines[number].startswith("    "):
                block.lines.append("")  # an empty line inside
            elif line.strip():
                block, notes = None, []
            else:
                block = None
            continue
        if block is None:
            block = Block(page, number)
            for kind, what in notes:
                if kind == "elsewhere":
                    block.elsewhere = what
                else:
                    getattr(block, kind).append(what)
            notes = []
            out.append(block)
        block.lines.append(line if fenced else line[4:])
    return out


def normal(text, varies):
    """One line of words, with what differs replaced."""
    text = re.sub(r"\s+", " ", text).strip()
    for expression in varies:
        text = re.sub(expression, "VARIES", text)
    return text


def words_of(text, varies):
    """Words of the page or of the output. Lines keep their ends as the word "\n", which only "word..." looks at."""
    return normal(text, varies).split(" ") if text.strip() else []


def segments_of(lines, varies):
    """What stands between "...": lists of words; None is a gap. A cut word ends a segment and begins a gap."""
    out = [[]]
    for word in words_of("\n".join(lines), varies):
        if word == "...":
            out.append([])
        elif word.endswith("..."):
            out[-1].append(word)
            out.append([])
        else:
            out[-1].append(word)
    return out


def same_word(wanted, got):
    return got.startswith(wanted[:-3]) if wanted.endswith("...") and wanted != "..." else wanted == got


def find(segment, words, begin):
    for at in range(begin, len(words) - len(segment) + 1):
        if all(same_word(w, g) for w, g in zip(segment, words[at:])):
            return at
    return -1


def difference(lines, output, varies):
    """Empty: the page prints what the command does. Else the first words of the page that it does not."""
    segments, words = segments_of(lines, varies), words_of(output, varies)
    at = 0
    for i, segment in enumerate(segments):
        is_first, is_last = i == 0, i == len(segments) - 1
        if is_last and segment and not is_first:
            found = len(words) - len(segment)
            found = found if found >= at and find(segment, words[found:], 0) == 0 else -1
        else:
            found = find(segment, words, at)
            if is_first and found != 0:
                found = -1
        if found < 0:
            return " ".join(segment)
        at = found + len(segment)
    return "" if segments[-1] == [] or at == len(words) else "the output goes on: " + " ".join(words[at:at + 12])


class Pages:
    def __init__(self, program, source):
        self.program, self.source = pathlib.Path(program).resolve(), pathlib.Path(source).resolve()
        self.failures, self.elsewhere, self.held, self.looked_at = [], [], 0, 0
        self.flags, self.keys = self.known_flags(), self.known_keys()

    def run(self, command, folder):
        """Standard output and standard error of a command line of the shell."""
        shell = f'lockstep() {{ "{self.program}" "$@"; }}; {command}'
        done = subprocess.run(["bash", "-c", shell], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=600, errors="replace")
        return TIME_OF_DAY.sub("", done.stdout)

    def known_flags(self):
        """Of each command, from the manual page: {"data prepare": {"--out", ...}}"""
        out, command = {}, ""
        for line in self.run("lockstep man", ".").split("\n"):
            line = line.replace("\\-", "-")
            if line.startswith(".SS lockstep "):
                words = line[len(".SS lockstep "):].split()
                command = " ".join(words[:2]) if words[0] == "data" else words[0]
                out[command] = {"--help"}
            elif line.startswith(".B --"):
                out[command].update(flag.split(" ")[0] for flag in line[3:].split(", "))
        return out

    def known_keys(self):
        return set(re.findall(r"^([a-z_]+\.[a-z_0-9]+) =", self.run("lockstep recipe", "."), re.M))

    def fail(self, where, text):
        self.failures.append(f"{where}: {text}")

    def scratch(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-docs-"))
        for name in ("recipes", "clusters", "tests", "data", "bench"):
            (folder / name).symlink_to(self.source / name)
        return folder

    def look_at_flags(self, where, line):
        """A command line that is not run: does lockstep have what it asks for?"""
        line = re.split(r"\s#|\s{2,}", line)[0]  # a comment, or a second column
        try:
            words = shlex.split(line)
        except ValueError:
            return
        own = [words[1:]]
        if "--" in words:
            cut = words.index("--")
            own = [words[1:cut], words[cut + 1:]]
        for words in own:
            if not words or not re.fullmatch(r"[a-z]+", words[0]):
                continue
            command = " ".join(words[:2]) if words[0] == "data" else words[0]
            if command not in self.flags:
                self.fail(where, f"there is no command {command}: {line}")
                continue
            self.looked_at += 1
            for word in words[1:]:
                flag = word.split("=")[0]
                if not flag.startswith("--"):
                    continue
                known = flag[2:].replace(".no-", ".") in self.keys if "." in flag else flag in self.flags[command]
                if not known:
                    self.fail(where, f"{command} has no {flag}: {line}")

    def hold_block(self, block, folder):
        commands = block.commands()
        if not commands:
            for number, line in enumerate(block.lines, block.line):
                if line.startswith("lockstep "):
                    self.look_at_flags(f"{block.page}:{number}", line)
            return
        if block.elsewhere:
            self.elsewhere.append(f"{block.where()}: {block.elsewhere}: {commands[0][0]}")
            for command, _ in commands:
                self.look_at_flags(block.where(), command)
            return
        for command in block.after:
            self.run(command, folder)
        for command, lines in commands:
            output = self.run(command, folder)
            self.held += 1
            if missing := difference(lines, output, block.varies) if any(l.strip() for l in lines) else "":
                self.fail(block.where(), f"{command}\n  does not print: {missing}\n  but:\n{output}")

    def hold_page(self, page):
        text = (self.source / page).read_text()
        folder = self.scratch()
        try:
            for block in blocks_of(page, text):
                self.hold_block(block, folder)
            body = normal(HOLDS.sub("", text), [])
            for command, texts in HOLDS.findall(text):
                output = normal(self.run(command, folder), [])
                self.held += 1
                for wanted in (normal(t, []) for t in texts.split("|")):
                    if wanted not in output:
                        self.fail(page, f"{command}\n  does not print: {wanted}\n  but:\n{output}")
                    if wanted not in body:
                        self.fail(page, f"the page does not say: {wanted}")
        finally:
            shutil.rmtree(folder)


def main():
    program, source, *pages = sys.argv[1:]
    held = Pages(program, source)
    root = pathlib.Path(source)
    for page in pages:
        inside = sorted((root / page).glob("*.md")) if (root / page).is_dir() else [root / page]
        for path in inside:
            held.hold_page(str(path.relative_to(root)))
    for line in held.elsewhere:
        print(f"not run here: {line}")
    for failure in held.failures:
        print(failure)
    print(f"{held.held} commands run and compared, {held.looked_at} looked at, {len(held.elsewhere)} measured elsewhere, "
          f"{len(held.failures)} differ")
    sys.exit(1 if held.failures else 0)


if __name__ == "__main__":
    main()
