//! A test: every command and flag of `podwire` that messages, help texts and documents name exists.

use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};

use crate::Podwire;

/// Words that end a command in a line of a shell. Three spaces precede an explanation.
const ENDS: [&str; 10] = [" -- ", " | ", "; ", " && ", "$(", " > ", " #", ")", "`", "   "];
/// Not a command for people: a process of this program.
const INTERNAL: &str = "pause";

/// The texts of the repository that people read, without tests.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_built = ["target", "dist", "corpus", "artifacts", "tests"].contains(&name.as_str());
        match path.is_dir() {
            true if !is_built && !name.starts_with('.') => files(&path, found),
            false if !name.ends_with(".lock") => found.push(path),
            _ => {}
        }
    }
}

/// The commands that a text names: in backquotes, at the start of a line of code, or behind what ends another command.
fn commands(text: &str, is_code: impl Fn(&str) -> bool) -> Vec<String> {
    let joined = join(text);
    let quoted = joined.match_indices("`podwire ").filter_map(|(at, _)| joined[at + 1..].split('`').next());
    let lines = joined.lines().filter(|line| is_code(line));
    quoted.chain(lines).flat_map(parts).collect()
}

/// The commands that messages in a source name without backquotes: two words, of which the first has subcommands.
/// `podwire agent` is also the name of the daemon.
fn commands_in_messages(text: &str, root: &Command) -> Vec<String> {
    let has_subcommands = |name: &str| root.find_subcommand(name).is_some_and(Command::has_subcommands);
    let message = |line: &&str| !line.trim_start().starts_with("//");
    let rests = text.lines().filter(message).flat_map(|line| line.split("podwire ").skip(1));
    let command = |rest: &str| {
        let mut words = rest.split_whitespace();
        let (first, second) = (words.next()?, words.next()?);
        (has_subcommands(first) && first != "agent").then(|| format!("{first} {second}"))
    };
    rests.filter_map(command).collect()
}

/// The text with each backquoted command and each continued line in one line.
fn join(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        let last = joined.rsplit('\n').next().unwrap_or_default();
        let is_open = last.rfind("`podwire").is_some_and(|at| !last[at + 1..].contains('`'));
        let continued = last.strip_suffix('\\').map(str::len);
        if is_open || continued.is_some() {
            joined.truncate(joined.len() - last.len() + continued.unwrap_or(last.len()));
            let line = line.trim_start();
            let bare = ["///", "//!", "//", "#"].iter().find_map(|prefix| line.strip_prefix(prefix));
            joined += " ";
            joined += bare.unwrap_or(line).trim_start();
        } else {
            if !joined.is_empty() {
                joined.push('\n');
            }
            joined += line;
        }
    }
    joined
}

/// The commands of a line, without the program's name.
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![line.trim()];
    for end in ENDS {
        parts = parts.into_iter().flat_map(|part| part.split(end)).collect();
    }
    let command = |part: &str| {
        let is_prefix = |word: &&str| ["$", "sudo", "exec"].contains(word) || is_assignment(word);
        let mut words = part.split_whitespace().skip_while(is_prefix);
        let program = words.next()?.trim_start_matches("ExecStart=");
        let is_podwire = program == "podwire" || program.ends_with("/podwire");
        is_podwire.then(|| words.collect::<Vec<_>>().join(" "))
    };
    parts.into_iter().filter_map(command).collect()
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

/// What is wrong with a command: an unknown subcommand or flag.
fn problem(root: &Command, words: &str) -> Option<String> {
    let mut command = root;
    let mut words = words.split(' ').map(|word| word.trim_end_matches(['.', ',', ':', '?']));
    let mut rest = None;
    for word in words.by_ref() {
        let is_name = word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || "-|".contains(c));
        if !is_name || !command.has_subcommands() {
            rest = Some(word);
            break;
        }
        // `add|del`: the last one decides about the flags.
        let mut found = command;
        for name in word.split('|') {
            match command.find_subcommand(name) {
                Some(one) => found = one,
                None if name == INTERNAL => return None,
                None => return Some(format!("{} has no command {name}", command.get_name())),
            }
        }
        command = found;
    }
    let unknown = |word: &&str| {
        let flag: &str = word.split(['=', '[', '|', '/', '…', '"']).next().unwrap_or(word);
        flag.starts_with('-') && !flag.trim_start_matches('-').is_empty() && !has_flag(command, flag)
    };
    let unknown = rest.into_iter().chain(words).find(unknown)?;
    Some(format!("{} has no flag {unknown}", command.get_name()))
}

/// Whether the command, or one of its subcommands, has the flag.
fn has_flag(command: &Command, flag: &str) -> bool {
    let name = flag.trim_start_matches('-');
    let is_long = |arg: &Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
    };
    let is_short = |arg: &Arg| arg.get_short().is_some_and(|short| name.starts_with(short));
    let is_it = |arg: &Arg| if flag.starts_with("--") { is_long(arg) } else { is_short(arg) };
    command.get_arguments().any(is_it) || command.get_subcommands().any(|one| has_flag(one, flag))
}

fn root() -> Command {
    let mut root = Podwire::command();
    root.build();
    root
}

#[test]
fn every_named_command_exists() {
    let (root, mut paths) = (root(), Vec::new());
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    files(project, &mut paths);
    // The examples of the other test.
    paths.retain(|path| !path.ends_with(file!()));
    let (mut checked, mut wrong) = (0, Vec::new());
    for path in paths {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(project).unwrap_or(&path).display().to_string();
        let found = match path.extension().and_then(|end| end.to_str()) {
            // In prose a line may begin with the program's name.
            Some("md") => commands(&indented_code(&text), |line| line.starts_with('\t')),
            Some("rs") => {
                let examples = commands(&text, |line| line.starts_with("  podwire "));
                [examples, commands_in_messages(&text, &root)].concat()
            }
            _ => commands(&text, |_| true),
        };
        checked += found.len();
        let problem = |words: &String| Some(format!("{name}: podwire {words}: {}", problem(&root, words)?));
        wrong.extend(found.iter().filter_map(problem));
    }
    assert!(checked > 500, "{checked} commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The document with a tab before each line of its code blocks, and without their fences.
fn indented_code(text: &str) -> String {
    let mut inside = false;
    let line = |line: &str| {
        if line.trim_start().starts_with("```") {
            inside = !inside;
            return String::new();
        }
        format!("{}{line}\n", if inside { "\t" } else { "" })
    };
    text.lines().map(line).collect()
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let root = root();
    let of = |text: &str| {
        let all = commands(text, |line| line.starts_with("  "));
        all.iter().filter_map(|words| problem(&root, words)).collect::<Vec<_>>()
    };
    for text in [
        "`podwire cni audit --fix` and `podwire\n/// lab apply`, podwire is a program",
        "  sudo podwire lab exec n1 -- podwire pod list | podwire cni list --json   explanation --no",
        "`podwire cni add|del NETWORK`, `podwire agent … --healthz-port`, `podwire pod exec x -- ls --all`",
        "  CNI_PATH=/x podwire cni add pods blue \\\n    --publish 8080:80",
    ] {
        assert_eq!(of(text), [""; 0], "{text}");
    }
    for (text, found) in [
        ("`podwire audit` shows it", "podwire has no command audit"),
        ("`podwire lab\n//! stop`", "lab has no command stop"),
        ("`podwire cni add|remove`", "cni has no command remove"),
        ("  podwire lab exec n1 -- podwire pod ls", "pod has no command ls"),
        ("  podwire cni add pods blue \\\n    --port 8080:80", "add has no flag --port"),
        ("`podwire verify -x`", "verify has no flag -x"),
    ] {
        assert_eq!(of(text), [found], "{text}");
    }
    let message = commands_in_messages("\"next: podwire lab check, podwire agent runs\"", &root);
    assert_eq!(message, ["lab check,"]);
    assert_eq!(problem(&root, &message[0]).as_deref(), Some("lab has no command check"));
}
