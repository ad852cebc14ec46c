//! Times casts of a float32 slice beside those of the crate `half`, by slice and by element (candle's way):
//! `cargo run --release --example beside_half --features half`. Prints nanoseconds an element, the minimum of turns.

#![allow(clippy::print_stdout, reason = "prints a table")]

use std::hint::black_box;
use std::time::Instant;

use castwise_core::{Element, F8E4M3Fn, Options, cast};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

const TURNS: usize = 40;

fn time(elements: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..TURNS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min) * 1e9 / elements as f64
}

type BySlice<T> = fn(&[f32], &mut [T]);

fn row<T: Element + Default + PartialEq>(
    name: &str,
    source: &[f32],
    by_slice: Option<BySlice<T>>,
    by_element: Option<fn(f32) -> T>,
) {
    let count = source.len();
    let mut target = vec![T::default(); count];
    let ours = time(count, || {
        cast(black_box(source), black_box(&mut target), Options::default())
            .expect("float formats are supported");
    });
    let mut other = vec![T::default(); count];
    let slice = by_slice.map(|convert| time(count, || convert(black_box(source), black_box(&mut other))));
    let is_equal = by_slice.is_none() || target == other;
    let element = by_element.map(|convert| {
        time(count, || {
            for (code, &x) in other.iter_mut().zip(black_box(source)) {
                *code = convert(x);
            }
        })
    });
    let is_equal = is_equal && (by_element.is_none() || target == other);
    let shown = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3}"));
    println!("| {name} | {count} | {ours:.3} | {} | {} | {is_equal} |", shown(slice), shown(element));
}

fn main() {
    println!("| to | elements | castwise | half::slice | element by element | equal bits |");
    println!("|---|--:|--:|--:|--:|---|");
    for count in [1 << 16, 1 << 24] {
        // Values of a spread of 2^-20 to 2^20, of both signs, without NaN.
        let source: Vec<f32> = (0..count as u32)
            .map(|index| f32::from_bits(index.wrapping_mul(0x9e37_79b9) % 0x1400_0000 + 0x3580_0000))
            .enumerate()
            .map(|(index, x)| if index % 2 == 0 { x } else { -x })
            .collect();
        row::<bf16>("bfloat16", &source, Some(|x, y| y.convert_from_f32_slice(x)), Some(bf16::from_f32));
        row::<f16>("float16", &source, Some(|x, y| y.convert_from_f32_slice(x)), Some(f16::from_f32));
        row::<F8E4M3Fn>("float8_e4m3fn", &source, None, None);
    }
}
