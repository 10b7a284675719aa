#!/usr/bin/env python3
"""Writes the manual page and the completions of bash, zsh and fish from the program's own table of flags.

usage: generate_cli_docs.py PALIMPSEST FOLDER [--version V]

`palimpsest --dump-flags` prints the table as JSON: {commands: [{name, summary, examples, operand}], flags: [{names, type, help, value,
default, choices, required, commands}]}.
"""

import argparse
import json
import subprocess
from pathlib import Path

FILE_VALUES = {"FILE", "FOLDER", "PATH"}


def flags_of(table, command):
    return [flag for flag in table["flags"] if command["name"] in flag["commands"]]


def help_of(flag):
    """One sentence: the help, and the default where there is one."""
    default = f" (default: {flag['default']})" if "default" in flag else ""
    return flag["help"] + default


# ---- manual page ------------------------------------------------------------------------------------------------------


def roff(text):
    """Text that means itself to troff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def sentence(text):
    return text[0].upper() + text[1:] + "."


def manual_flag(flag):
    value = f" \\fI{roff(flag['value'])}\\fR" if "value" in flag else ""
    names = ", ".join(f"\\fB{roff(name)}\\fR" for name in flag["names"])
    lines = [".TP", names + value, roff(sentence(flag["help"]))]
    if "default" in flag:
        lines.append(roff(f"Default: {flag['default']}."))
    if flag.get("required"):
        lines.append("Required.")
    return lines


def manual(table, version):
    lines = [
        f'.TH PALIMPSEST 1 "" "palimpsest {version}" "User Commands"',
        ".SH NAME",
        "palimpsest \\- run language models that keep pages instead of lists",
        ".SH SYNOPSIS",
        ".B palimpsest",
        "\\fICOMMAND\\fR \\fB\\-m\\fR \\fIPATH\\fR [\\fIFLAGS\\fR]",
        ".SH DESCRIPTION",
        "Runs the language models that led from GPT\\-2 and Llama through linear attention and DeltaNet to Kimi\\-Linear and Kimi K3, as they",
        "are published: a folder with config.json and safetensors files, or a GGUF file. The result goes to standard output, everything",
        "else to standard error.",
        ".SH COMMANDS",
    ]
    for command in table["commands"]:
        operand = f" \\fI{roff(command['operand'])}\\fR" if "operand" in command else ""
        lines += [".TP", f"\\fB{command['name']}\\fR{operand}", roff(sentence(command["summary"]))]
    lines += [
        ".SH FLAGS OF EVERY COMMAND",
        ".TP",
        "\\fB\\-h\\fR, \\fB\\-\\-help\\fR",
        "Print the flags, with examples, and leave.",
        ".TP",
        "\\fB\\-\\-version\\fR",
        "Print the version and leave.",
    ]
    for command in table["commands"]:
        lines += [f".SH \"FLAGS OF {command['name'].upper()}\""]
        for flag in flags_of(table, command):
            lines += manual_flag(flag)
    lines += [".SH EXAMPLES"]
    for command in table["commands"]:
        lines += [".nf", roff(command["examples"]), ".fi", ".PP"]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        "\\fBPALIMPSEST_TARGET\\fR",
        "Instruction set of the kernels: AVX3, AVX2 or SCALAR. Without it, the best that the machine has.",
        ".TP",
        "\\fBPALIMPSEST_CTX_SIZE\\fR and so on",
        "Each flag of serve, with PALIMPSEST_ in front of its name. A flag of the command line goes before it.",
        ".TP",
        "\\fBHF_ENDPOINT\\fR, \\fBHF_TOKEN\\fR, \\fBHF_HOME\\fR, \\fBHF_HUB_CACHE\\fR, \\fBHF_HUB_OFFLINE\\fR",
        "Where models are downloaded from and kept, as for other programs of the Hugging Face hub.",
        ".SH EXIT STATUS",
        "0 when all went well, 2 for a wrong flag or argument, 1 for everything else.",
    ]
    return "\n".join(lines) + "\n"


# ---- completions ------------------------------------------------------------------------------------------------------


def bash(table):
    """A function that completes the command, then its flags, then the values that are known or are files."""
    cases, values = [], {}
    for command in table["commands"]:
        names = [name for flag in flags_of(table, command) for name in flag["names"]]
        cases.append(f"    {command['name']}) words=\"{' '.join(dict.fromkeys(names))}\" ;;")
    for flag in table["flags"]:
        pattern = "|".join(flag["names"])
        if flag.get("choices"):
            values[pattern] = f"COMPREPLY=($(compgen -W \"{' '.join(flag['choices'])}\" -- \"$word\")); return"
        elif flag.get("value") in FILE_VALUES:
            values[pattern] = 'COMPREPLY=($(compgen -f -- "$word")); return'
        elif "value" in flag:
            values[pattern] = "return"
    commands = " ".join(command["name"] for command in table["commands"])
    value_cases = "\n".join(f"    {pattern}) {action} ;;" for pattern, action in values.items())
    return f"""# bash completion of palimpsest
_palimpsest() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))
    return
  fi
  case $previous in
{value_cases}
  esac
  case ${{COMP_WORDS[1]}} in
{chr(10).join(cases)}
    *) return ;;
  esac
  COMPREPLY=($(compgen -W "$words --help" -- "$word"))
}}
complete -o filenames -F _palimpsest palimpsest
"""


def zsh_text(text):
    """Text inside single quotes and brackets of an _arguments specification."""
    return text.replace("\\", "\\\\").replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_flag(flag):
    action = ""
    if flag.get("choices"):
        action = f":{flag['value'].lower()}:({' '.join(flag['choices'])})"
    elif flag.get("value") in FILE_VALUES:
        action = f":{flag['value'].lower()}:_files"
    elif "value" in flag:
        action = f":{flag['value'].lower()}:"
    exclusive = " ".join(flag["names"])
    return [f"      '({exclusive}){name}[{zsh_text(help_of(flag))}]{action}'" for name in flag["names"]]


def zsh(table):
    commands = "\n".join(f"    '{command['name']}:{zsh_text(command['summary'])}'" for command in table["commands"])
    cases = []
    for command in table["commands"]:
        specs = [line for flag in flags_of(table, command) for line in zsh_flag(flag)]
        cases.append(f"    {command['name']}) _arguments \\\n" + " \\\n".join(specs) + " ;;")
    return f"""#compdef palimpsest
_palimpsest() {{
  local -a commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
_palimpsest "$@"
"""


def fish_text(text):
    return text.replace("\\", "\\\\").replace("'", "\\'")


def fish_flag(flag, commands):
    options = []
    for name in flag["names"]:
        if name.startswith("--"):
            options.append(f"-l {name[2:]}")
        elif len(name) == 2:
            options.append(f"-s {name[1:]}")
        else:
            options.append(f"-o {name[1:]}")
    if flag.get("choices"):
        options.append(f"-x -a '{' '.join(flag['choices'])}'")
    elif flag.get("value") in FILE_VALUES:
        options.append("-r -F")
    elif "value" in flag:
        options.append("-x")
    return f"complete -c palimpsest -n '__fish_seen_subcommand_from {commands}' {' '.join(options)} -d '{fish_text(help_of(flag))}'"


def fish(table):
    lines = ["# fish completion of palimpsest", "complete -c palimpsest -f"]
    for command in table["commands"]:
        summary = fish_text(command["summary"])
        lines.append(f"complete -c palimpsest -n __fish_use_subcommand -a {command['name']} -d '{summary}'")
    lines += [fish_flag(flag, " ".join(flag["commands"])) for flag in table["flags"]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default="")
    arguments = parser.parse_args()

    dumped = subprocess.run([arguments.program, "--dump-flags"], capture_output=True, check=True, text=True)
    table = json.loads(dumped.stdout)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    files = {
        "palimpsest.1": manual(table, arguments.version),
        "palimpsest.bash": bash(table),
        "_palimpsest": zsh(table),
        "palimpsest.fish": fish(table),
    }
    for name, text in files.items():
        (arguments.folder / name).write_text(text)


if __name__ == "__main__":
    main()
