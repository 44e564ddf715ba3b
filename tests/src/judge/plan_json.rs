//! MSCCL++'s JSON, as far as the judge needs it: what a plan promises, and mistakes put into it.

use serde_json::Value;

use super::mutate::Draw;

/// The promise of a plan: the collective by MSCCL's word, and the number of ranks.
pub fn promise(text: &str) -> Option<(String, usize)> {
    let plan: Value = serde_json::from_str(text).ok()?;
    let collective = match plan.get("collective").or_else(|| plan.get("coll"))?.as_str()? {
        // Words for what no collective is.
        "sendrecv" | "test" => "custom",
        word => word,
    };
    Some((collective.to_owned(), plan.get("gpus")?.as_array()?.len()))
}

/// A copy of a plan with one mistake, and which: a number is another one, or an element of a list is missing
/// or has changed places with its neighbour.
pub fn mutant(text: &str, draw: &mut Draw) -> Option<(String, String)> {
    let mut plan: Value = serde_json::from_str(text).ok()?;
    for _ in 0..100 {
        if let Some(told) = mistake(plan.get_mut("gpus")?, draw, "gpus") {
            return Some((plan.to_string(), told));
        }
    }
    None
}

/// Goes down at random, then changes what is there.
fn mistake(value: &mut Value, draw: &mut Draw, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            let name = names.get(draw.below(names.len().max(1)))?;
            mistake(fields.get_mut(name)?, draw, &format!("{path}.{name}"))
        }
        Value::Array(items) if !items.is_empty() => {
            let at = draw.below(items.len());
            match draw.below(12) {
                0 if path.ends_with("ops") => {
                    items.remove(at);
                    Some(format!("{path}[{at}] is missing"))
                }
                1 if at + 1 < items.len() && path.ends_with("ops") => {
                    items.swap(at, at + 1);
                    Some(format!("{path}[{at}] and the next changed places"))
                }
                _ => mistake(&mut items[at], draw, &format!("{path}[{at}]")),
            }
        }
        Value::Number(number) => {
            let new = (number.as_i64()? + draw.of(&[-2, -1, 1, 1, 2])).max(0);
            *value = Value::from(new);
            Some(format!("{path} became {new}"))
        }
        _ => None,
    }
}
