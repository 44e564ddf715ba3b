//! The oracle against brute force: data survive every order of reduction in the element type itself.

use super::*;

const RANKS: [u32; 9] = [1, 2, 3, 5, 8, 16, 31, 64, 1024];

/// Rounds to the type, as an implementation that stores partial results does.
fn round(dtype: DataType, value: Number) -> Number {
    let mut bytes = [0; 8];
    encode(dtype, value, &mut bytes);
    decode(dtype, &bytes[..dtype.size()])
}

/// Reduces in the element type along `order`, rounding after each step.
fn by_hand(data: &Data, op: ReduceOp, i: u64, order: &[u32]) -> Number {
    let dtype = data.dtype;
    let mut sum: Option<Number> = None;
    for &rank in order {
        let mut x = data.value(op, rank, i);
        if op == ReduceOp::PreMulSum {
            x = round(dtype, times(x, 1 + i128::from(rank % 2)));
        }
        if op == ReduceOp::Avg && dtype.is_float() {
            x = round(dtype, Number::Float(float(x) / f64::from(data.ranks)));
        }
        sum = Some(match sum {
            None => x,
            Some(sum) => round(dtype, pair(op, sum, x)),
        });
    }
    match sum.expect("at least one rank") {
        Number::Int(v) if op == ReduceOp::Avg => Number::Int(v / i128::from(data.ranks)),
        other => other,
    }
}

fn times(x: Number, factor: i128) -> Number {
    match x {
        Number::Int(v) => Number::Int(v * factor),
        Number::Float(v) => Number::Float(v * factor as f64),
    }
}

fn pair(op: ReduceOp, a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Number::Int(match op {
            ReduceOp::Prod => a.wrapping_mul(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            _ => a + b,
        }),
        (a, b) => {
            let (a, b) = (float(a), float(b));
            Number::Float(match op {
                ReduceOp::Prod => a * b,
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
                _ => a + b,
            })
        }
    }
}

#[test]
fn every_order_of_reduction_is_accepted() {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for ranks in RANKS {
                let data = Data { dtype, op: Some(op), ranks, seed: 3 };
                let expected = data.reduced(op, 12);
                let forward: Vec<u32> = (0..ranks).collect();
                let rotated: Vec<u32> = (0..ranks).map(|r| (r + ranks / 2) % ranks).rev().collect();
                for i in 0..12 {
                    for order in [&forward, &rotated] {
                        let result = by_hand(&data, op, i, order);
                        let mut bytes = [0; 8];
                        encode(dtype, result, &mut bytes);
                        let wrong = expected.count_wrong(i, &bytes[..dtype.size()]);
                        assert_eq!(wrong, 0, "{dtype:?} {op:?} {ranks} ranks, element {i}: {result:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_missing_rank_is_noticed() {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for ranks in [2, 3, 5, 8, 16] {
                let data = Data { dtype, op: Some(op), ranks, seed: 1 };
                let expected = data.reduced(op, 400);
                let without_last: Vec<u32> = (0..ranks - 1).collect();
                let wrong: u64 = (0..400)
                    .map(|i| {
                        let mut bytes = [0; 8];
                        encode(dtype, by_hand(&data, op, i, &without_last), &mut bytes);
                        expected.count_wrong(i, &bytes[..dtype.size()])
                    })
                    .sum();
                assert!(wrong > 0, "{dtype:?} {op:?} {ranks} ranks");
            }
        }
    }
}

#[test]
fn inputs_are_what_is_filled() {
    let data = Data { dtype: DataType::Float16, op: Some(ReduceOp::Sum), ranks: 4, seed: 9 };
    let elements = 3 * PERIOD + 17;
    let mut buffer = vec![0; elements as usize * 2];
    data.fill(2, &mut buffer);
    let expected = data.input(2, elements);
    assert_eq!(expected.count_wrong(0, &buffer), 0);
    assert_eq!(expected.count_wrong(5000, &buffer[5000 * 2..]), 0);
    assert_eq!(expected.count_wrong(2 * PERIOD + 1, &buffer[(2 * PERIOD as usize + 1) * 2..]), 0);
    buffer[12_345] ^= 0x80;
    assert_eq!(expected.count_wrong(0, &buffer), 1);
}

#[test]
fn moved_data_are_compared_bit_by_bit() {
    let data = Data { dtype: DataType::Float8e4m3, op: None, ranks: 2, seed: 0 };
    let mut buffer = vec![0; 1000];
    data.fill(0, &mut buffer);
    let expected = data.input(0, 1000);
    assert_eq!(expected.count_wrong(0, &buffer), 0);
    let nan = buffer.iter().position(|b| *b == 0x7f).expect("random bytes hold a NaN");
    buffer[nan] = 0xff;
    assert_eq!(expected.count_wrong(0, &buffer), 1);
    assert!(data.input(1, 1000).count_wrong(0, &buffer) > 900);
}

#[test]
fn seeds_and_ranks_differ() {
    let data = |seed| Data { dtype: DataType::Float32, op: Some(ReduceOp::Sum), ranks: 8, seed };
    let mut buffer = vec![0; 400];
    data(1).fill(3, &mut buffer);
    assert!(data(2).input(3, 100).count_wrong(0, &buffer) > 90);
    assert!(data(1).input(4, 100).count_wrong(0, &buffer) > 90);
}

#[test]
fn a_wrong_value_and_a_nan_are_wrong() {
    let data = Data { dtype: DataType::Float32, op: Some(ReduceOp::Avg), ranks: 3, seed: 1 };
    let expected = data.reduced(ReduceOp::Avg, 1);
    assert_eq!(expected.count_wrong(0, &f32::NAN.to_le_bytes()), 1);
    assert_eq!(expected.count_wrong(0, &1e9f32.to_le_bytes()), 1);
}

#[test]
fn premul_scalars_have_the_planners_form() {
    let data = |dtype| Data { dtype, op: Some(ReduceOp::PreMulSum), ranks: 2, seed: 0 };
    assert_eq!(data(DataType::Float16).scalar(1), Scalar::Immediate(u64::from(2f32.to_bits())));
    assert_eq!(data(DataType::Float64).scalar(1), Scalar::Immediate(2f64.to_bits()));
    assert_eq!(data(DataType::Int8).scalar(0), Scalar::Immediate(1));
}
