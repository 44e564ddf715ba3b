//! Moments of streams.

use super::*;

#[test]
fn moments_know_the_time_between_them() {
    with_fake_driver("moment::moments_know_the_time_between_them", &[], || {
        let device = opened(0);
        let [from, to] = [(); 2].map(|()| device.moment(Stream(1)).unwrap());
        // Another thread captures: asking is allowed all the same.
        set_capturing(1);
        assert_eq!(device.between(&from, &to).unwrap(), None, "not reached yet");
        assert_eq!(device.between(&from, &to).unwrap(), Some(Duration::from_micros(1500)));
        set_capturing(0);
        let other = Moment { owner: Box::new(()) };
        assert!(device.between(&from, &other).unwrap_err().text.contains("another device"));
        drop((from, to, device));
        assert_eq!(fake("fake_live"), 0);
    });
}
