//! Parts that all pictures have in common.

use std::fmt::Write as _;

/// Colours that are told apart, also by people who see red and green alike.
pub const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c8c00"];

/// A text inside a picture.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// The beginning of a picture of this size, white, with a title, and a description for those who do not see
/// it.
pub fn begin((width, height): (f64, f64), left: f64, title: &str, description: &str) -> String {
    let (title, description) = (escaped(title), escaped(description));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"what text\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title id=\"what\">{title}</title>\n<desc id=\"text\">{description}</desc>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"16\">{title}</text>\n"
    )
}

/// The way in which numbers become places along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps for equal differences, from 0 on.
    Linear,
    /// Equal steps for equal factors.
    Logarithmic,
}

/// A frame with two axes. Sizes grow to the right by factors, or time evenly, values upwards.
pub struct Axes {
    /// Left, top, width and height.
    pub frame: (f64, f64, f64, f64),
    sizes: (f64, f64),
    values: (f64, f64),
    scale: Scale,
}

impl Axes {
    /// Axes around these sizes and values, if there are any.
    pub fn new(frame: (f64, f64, f64, f64), sizes: &[u64], values: &[f64], scale: Scale) -> Option<Self> {
        let (first, last) = (*sizes.iter().min()?, *sizes.iter().max()?);
        let range = |values: &[f64]| {
            values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)))
        };
        let (low, high) = range(values);
        let wide = |(low, high): (f64, f64)| if high > low { (low, high) } else { (low / 2.0, high * 2.0) };
        let values = match scale {
            Scale::Linear => (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
            Scale::Logarithmic => wide((low.max(1e-9), high.max(1e-9))),
        };
        let sizes = wide((first.max(1) as f64, last.max(1) as f64));
        Some(Self { frame, sizes, values, scale })
    }

    /// Axes of these values over a time from 0 to `most`, which is above 0.
    pub fn over_time(frame: (f64, f64, f64, f64), most: f64, values: &[f64]) -> Self {
        let high = values.iter().copied().fold(0.0, f64::max);
        let values = (0.0, if high > 0.0 { high } else { 1.0 });
        Self { frame, sizes: (0.0, most.max(1e-9)), values, scale: Scale::Linear }
    }

    /// The place of a time.
    pub fn x_of_time(&self, time: f64) -> f64 {
        let (left, _, width, _) = self.frame;
        left + (time / self.sizes.1).clamp(0.0, 1.0) * width
    }

    /// The place of a size.
    pub fn x(&self, size: u64) -> f64 {
        let (left, _, width, _) = self.frame;
        let part = ((size.max(1) as f64) / self.sizes.0).ln() / (self.sizes.1 / self.sizes.0).ln();
        left + part.clamp(0.0, 1.0) * width
    }

    /// The place of a value.
    pub fn y(&self, value: f64) -> f64 {
        let (_, top, _, height) = self.frame;
        let (low, high) = self.values;
        let part = match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Logarithmic => (value.max(1e-9) / low).ln() / (high / low).ln(),
        };
        top + (1.0 - part.clamp(0.0, 1.0)) * height
    }

    /// The frame, round ticks, and what the axes are, with units. `sizes` are those that have a tick, of
    /// which as many are named as fit.
    pub fn draw(&self, text: &mut String, sizes: &[u64], value: &str) {
        let (_, top, width, height) = self.frame;
        let every = sizes.len().div_ceil((width / 52.0) as usize).max(1);
        self.value_ticks(text);
        for (at, size) in sizes.iter().enumerate() {
            let name = (at % every == 0).then(|| crate::output::size(*size));
            tick(text, (self.x(*size), top + height), name.as_deref());
        }
        self.outline(text, "size", value);
    }

    /// The same for axes over a time.
    pub fn draw_over_time(&self, text: &mut String, time: &str, value: &str) {
        let (_, top, _, height) = self.frame;
        self.value_ticks(text);
        for at in round_ticks(self.sizes.1) {
            tick(text, (self.x_of_time(at), top + height), Some(&at.to_string()));
        }
        self.outline(text, time, value);
    }

    /// Round ticks of the values, with lines across.
    fn value_ticks(&self, text: &mut String) {
        let (left, _, width, _) = self.frame;
        let ticks = match self.scale {
            Scale::Linear => round_ticks(self.values.1),
            Scale::Logarithmic => log_ticks(self.values.0, self.values.1),
        };
        for tick in ticks {
            let y = self.y(tick);
            let _ = writeln!(
                text,
                "<path d=\"M{left} {y:.1}h{width}\" stroke=\"#dddddd\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"10\">{tick}</text>",
                left - 6.0,
                y + 3.0
            );
        }
    }

    /// The lines of both axes, and what they are.
    fn outline(&self, text: &mut String, along: &str, value: &str) {
        let (left, top, width, height) = self.frame;
        let (bottom, middle) = (top + height, left + width / 2.0);
        let _ = writeln!(
            text,
            "<path d=\"M{left} {top}v{height}h{width}\" fill=\"none\" stroke=\"black\"/>\
             <text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"11\">{}</text>\
             <text transform=\"translate({:.0} {:.0}) rotate(-90)\" text-anchor=\"middle\" \
             font-size=\"11\">{}</text>",
            bottom + 32.0,
            escaped(along),
            left - 44.0,
            top + height / 2.0,
            escaped(value)
        );
    }

    /// A line through points, which has a name under the pointer.
    pub fn line(&self, text: &mut String, points: &[(u64, f64)], stroke: &str, name: &str) {
        let place = |(size, value): &(u64, f64)| (self.x(*size), self.y(*value));
        line(text, points.iter().map(place), stroke, name);
    }

    /// The same over a time.
    pub fn line_over_time(&self, text: &mut String, points: &[(f64, f64)], stroke: &str, name: &str) {
        let place = |(time, value): &(f64, f64)| (self.x_of_time(*time), self.y(*value));
        line(text, points.iter().map(place), stroke, name);
    }
}

/// A line through places.
fn line(text: &mut String, places: impl Iterator<Item = (f64, f64)>, stroke: &str, name: &str) {
    let places: Vec<String> = places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        text,
        "<polyline fill=\"none\" {stroke} points=\"{}\"><title>{}</title></polyline>",
        places.join(" "),
        escaped(name)
    );
}

/// A tick of the axis below, and its name.
fn tick(text: &mut String, (x, bottom): (f64, f64), name: Option<&str>) {
    let _ = writeln!(text, "<path d=\"M{x:.1} {bottom}v4\" stroke=\"black\"/>");
    if let Some(name) = name {
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"10\">{name}</text>",
            bottom + 16.0,
        );
    }
}

/// Round numbers from 0 to a most, at most seven.
pub fn round_ticks(most: f64) -> Vec<f64> {
    let rough = most / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * decade).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * decade);
    (0..=7).map(|at| rounded(f64::from(at) * step)).take_while(|tick| *tick <= most).collect()
}

/// Numbers 1, 2 and 5 of each decade between two; 1 only where there are many decades.
pub fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let parts: &[f64] = if last - first > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all =
        (first..=last).flat_map(|decade| parts.iter().map(move |part| rounded(part * 10f64.powi(decade))));
    all.filter(|tick| (low..=high).contains(tick)).collect()
}

/// A number without the last digits, which arithmetic made.
fn rounded(number: f64) -> f64 {
    format!("{number:.12}").parse::<f64>().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(round_ticks(263.0), [0.0, 100.0, 200.0]);
        assert_eq!(round_ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(round_ticks(0.3), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(log_ticks(3.5, 60.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(log_ticks(0.9, 2e6), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
    }

    #[test]
    fn all_that_is_drawn_lies_in_the_frame() {
        let frame = (50.0, 20.0, 300.0, 200.0);
        for scale in [Scale::Linear, Scale::Logarithmic] {
            for (sizes, values) in
                [(vec![8, 1 << 30], vec![3.5, 9000.0]), (vec![8], vec![1.0]), (vec![0], vec![0.0])]
            {
                let axes = Axes::new(frame, &sizes, &values, scale).unwrap();
                for size in &sizes {
                    assert!((50.0..=350.0).contains(&axes.x(*size)), "{scale:?} {size}");
                }
                assert!(values.iter().all(|value| (20.0..=220.0).contains(&axes.y(*value))), "{scale:?}");
                let mut text = String::new();
                axes.draw(&mut text, &sizes, "time in µs");
                assert!(
                    text.contains("time in µs") && !text.contains("NaN") && !text.contains("inf"),
                    "{text}"
                );
            }
        }
        assert!(Axes::new(frame, &[], &[], Scale::Linear).is_none());
    }
}
