//! The class of an operation: how urgent it is.

/// The class of an operation. Best-effort ones give way to the others between two pieces of their work. A
/// class changes when an operation runs, never what it runs or which bits it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// It gives way to all others, but never for longer than a bound.
    BestEffort = 0,
    /// The class of operations of which nobody says another.
    #[default]
    Normal = 1,
    /// It comes first.
    Urgent = 2,
}

impl Class {
    /// All classes in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::BestEffort, Self::Normal, Self::Urgent];

    /// The name in settings, rule files and logs: `best_effort`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best_effort",
            Self::Normal => "normal",
            Self::Urgent => "urgent",
        }
    }

    /// The class of a name, in any case and with or without underscores; None for another word.
    pub fn named(text: &str) -> Option<Self> {
        let plain = |text: &str| text.trim().replace('_', "").to_ascii_lowercase();
        Self::ALL.into_iter().find(|class| plain(class.name()) == plain(text))
    }

    /// The class with this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_names_numbers_and_an_order() {
        for (number, class) in (0..).zip(Class::ALL) {
            assert_eq!((Class::named(class.name()), Class::numbered(number)), (Some(class), Some(class)));
            assert_eq!(class as u8, number);
        }
        assert_eq!(Class::named(" BestEffort "), Some(Class::BestEffort));
        assert_eq!((Class::named("high"), Class::numbered(3)), (None, None));
        assert!(Class::BestEffort < Class::Normal && Class::Normal < Class::Urgent);
    }
}
