//! The verdict on ranks that wait for others in init: there is no communicator yet that could be asked.

use std::collections::BTreeMap;

use super::rows::rows;
use super::{Cause, Evidence, Member, Verdict, seconds};
use crate::progress::joining::JoiningReport;
use crate::progress::report::ProcessReport;

/// The verdicts on ranks that wait for others in init, one for each meeting.
pub fn of_meetings(reports: &[ProcessReport]) -> Vec<Verdict> {
    let mut meetings: BTreeMap<u64, Vec<(&ProcessReport, &JoiningReport)>> = BTreeMap::new();
    for report in reports {
        for joining in &report.joining {
            meetings.entry(joining.meeting).or_default().push((report, joining));
        }
    }
    meetings.into_iter().filter_map(|(meeting, joining)| of_meeting(meeting, &joining)).collect()
}

fn of_meeting(meeting: u64, joining: &[(&ProcessReport, &JoiningReport)]) -> Option<Verdict> {
    // Who came first has heard most; what the root told last counts.
    let (_, told) = joining.iter().min_by_key(|(_, of)| (of.named.is_empty(), of.missing))?;
    let longest = joining.iter().map(|(_, of)| of.age_ms).max().unwrap_or(0);
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let here: Vec<u32> = joining.iter().map(|(_, of)| of.rank).take(8).collect();
    let waits = if joining.len() == 1 { "waits" } else { "wait" };
    let noun = |count: usize| if count == 1 { "rank" } else { "ranks" };
    let for_how_long = format!("{} {} of {} {waits} for", noun(joining.len()), list(&here), told.ranks);
    let mut sentence = match told.named.len() {
        0 => format!("{for_how_long} the root of the unique id since {}", seconds(longest)),
        named => {
            let more = (told.missing as usize).saturating_sub(named);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let has = if told.missing == 1 { "has" } else { "have" };
            let who = format!("{} {}{more}", noun(told.missing as usize), list(&told.named));
            format!("{who} {has} not come to init: {for_how_long} it since {}", seconds(longest))
        }
    };
    if !told.note.is_empty() {
        sentence = format!("{sentence}; {}, to the port where ranks meet", told.note);
    }
    let remedy = "do these ranks run, and did they get the same unique id and number of ranks? \
                  see what they wrote last";
    let members =
        joining.iter().map(|(report, of)| (of.rank, Member { host: report.host.clone(), pid: report.pid }));
    let evidence = Evidence { comm_id: meeting, members: members.collect(), ..Evidence::default() };
    let mut rows = rows(&evidence, told.ranks);
    for row in &mut rows {
        let joined = joining.iter().find(|(_, of)| of.rank == row.rank);
        let is_missing = told.named.contains(&row.rank);
        row.state = match joined {
            Some((report, _)) => report.state.as_ref().map_or_else(|| "?".into(), |state| state.text()),
            None if is_missing => "has not come".into(),
            None => "elsewhere".into(),
        };
        if let Some((_, of)) = joined {
            (row.operation, row.stage, row.age_ms) = ("init".into(), "called".into(), of.age_ms);
        }
    }
    Some(Verdict {
        comm_id: format!("{meeting:016x}"),
        name: "in init".into(),
        ranks: told.ranks,
        cause: Cause::MissingAtInit,
        guilty: told.named.clone(),
        sentence,
        remedy: remedy.into(),
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, joining: Vec<JoiningReport>) -> ProcessReport {
        ProcessReport {
            machine: [1; 16],
            host: "a".into(),
            pid,
            state: None,
            comms: Vec::new(),
            joining,
            neighbours: Vec::new(),
            losses: Vec::new(),
            figures: Vec::new(),
        }
    }

    fn joins(meeting: u64, rank: u32, named: &[u32], note: &str) -> JoiningReport {
        let (missing, named) = (named.len() as u32, named.to_vec());
        JoiningReport { meeting, rank, ranks: 4, age_ms: 1500, missing, named, note: note.into() }
    }

    #[test]
    fn ranks_that_have_not_come_are_named() {
        let note = "a caller from 10.0.0.9:80 sent an HTTP request";
        let reports = [
            process(10, vec![joins(7, 0, &[1], note), joins(9, 3, &[], "")]),
            process(11, vec![joins(7, 2, &[], ""), joins(7, 3, &[1], note)]),
        ];
        let verdicts = of_meetings(&reports);
        assert_eq!(verdicts.len(), 2);
        assert_eq!((verdicts[0].cause, &verdicts[0].guilty[..]), (Cause::MissingAtInit, &[1][..]));
        let text = verdicts[0].text();
        for part in ["rank 1 has not come to init: ranks 0, 2, 3 of 4 wait for it since 1.5 s", note] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert_eq!((&*verdicts[0].rows[1].state, &*verdicts[0].rows[2].operation), ("has not come", "init"));
        assert!(verdicts[1].sentence.contains("rank 3 of 4 waits for the root of the unique id since 1.5 s"));
        assert!(verdicts[1].guilty.is_empty());
        assert!(of_meetings(&[]).is_empty());
    }
}
