//! `hawser explain --calls`: many calls at once, each with its own collective, size, type and root.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use hawser_base::env;
use hawser_plan::{Collective, DataType};
use serde_json::Value;

use super::{Asked, Line, Options, collective_of, json_of_all, tuners};
use crate::perf::options::{parse_size, parse_type};

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    collective: Collective,
    bytes: u64,
    dtype: DataType,
    root: u32,
}

/// The choices of all calls, as JSON.
///
/// # Errors
/// The file cannot be read, a line is none, or a call has no choice; the text names the line.
pub fn explained(options: &Options, path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let Asked { topology, mut plan_config, source } = options.machine.asked()?;
    let (tuners, _) = tuners(options.rules.as_deref(), &topology, &plan_config)?;
    plan_config.copy_engines = env::settings().dma_enable && tuners.wants_copy_engines();
    let explain = |line: &str| -> Result<Value> {
        let Wanted { collective, bytes, dtype, root } = parse(line)?;
        if root >= topology.size() {
            bail!("root {root} is no rank: there are {}", topology.size());
        }
        let asked = (&topology, &plan_config);
        let explained = Line::new((collective, root), bytes, dtype, asked, &tuners)?;
        Ok(json_of_all(collective, &topology, &source, &[explained]))
    };
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let named = |(number, line)| explain(line).with_context(|| format!("{}:{number}", path.display()));
    let all = lines.map(named).collect::<Result<Vec<Value>>>()?;
    Ok(serde_json::to_string_pretty(&all).context("the choices as JSON")? + "\n")
}

fn parse(line: &str) -> Result<Wanted> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [collective, bytes, dtype, root] = words[..] else {
        bail!(
            "'{line}' is no call: write collective, bytes, type and root, as in 'all_gather 64K bfloat16 0'"
        );
    };
    Ok(Wanted {
        collective: collective_of(collective)?,
        bytes: parse_size(bytes).map_err(|why| anyhow!("size '{bytes}': {why}"))?,
        dtype: parse_type(dtype).map_err(|why| anyhow!("type '{dtype}': {why}"))?,
        root: root.parse().with_context(|| format!("root '{root}' is no number"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_calls_or_say_what_is_wrong() {
        let wanted =
            Wanted { collective: Collective::AllGather, bytes: 65536, dtype: DataType::Bfloat16, root: 3 };
        assert_eq!(parse("all_gather 64K bfloat16 3").unwrap(), wanted);
        for (line, part) in [
            ("all_gather 64K bfloat16", "is no call"),
            ("sendrecv 64K float 0", "no algorithm"),
            ("all_gather much float 0", "'much'"),
            ("all_gather 64K real 0", "'real'"),
            ("all_gather 64K float one", "'one'"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
