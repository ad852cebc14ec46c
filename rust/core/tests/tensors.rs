//! The safe entrance: bounds that are checked, and results of whole calls.

use castwise_core::{
    Bf16, Error, F8E4M3Fn, F16, Format, Options, Overflow, Quantized, Settings, Tensor, cast,
    cast_and_report, quantize, schemes,
};

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index as f32 - count as f32 / 2.0) / count as f32).collect()
}

fn message(error: &Error) -> String {
    error.to_string()
}

#[test]
fn slices_of_other_lengths_are_refused() {
    let mut target = [Bf16(7); 2];
    let error = cast(&[1.0f32; 3], &mut target, Options::default()).unwrap_err();
    assert_eq!(error, Error::Length { argument: "target", length: 2, needed: 3 });
    assert_eq!(target, [Bf16(7); 2]);
}

#[test]
fn an_error_leaves_the_target() {
    let options = Options { overflow: Overflow::Raise, ..Options::default() };
    let mut target = [F16(7); 2];
    let error = cast(&[1.0f32, 1e6], &mut target, options).unwrap_err();
    assert!(matches!(error, Error::Overflow { index: 1, .. }));
    assert_eq!(target, [F16(7); 2]);
}

#[test]
fn bools_and_complex_numbers_are_elements() {
    let mut flags = [false; 3];
    cast(&[0.0f32, -2.0, f32::NAN], &mut flags, Options::default()).unwrap();
    assert_eq!(flags, [false, true, true]);
    let mut pairs = [[0f32; 2]; 1];
    cast(&[[1.5f64, -0.5]], &mut pairs, Options::default()).unwrap();
    assert_eq!(pairs, [[1.5, -0.5]]);
    assert!(matches!(cast(&pairs, &mut [0f32; 1], Options::default()), Err(Error::Unsupported { .. })));
}

#[test]
fn threads_do_not_change_a_report() {
    let source = ramp(1 << 20);
    let mut targets = [vec![F8E4M3Fn(0); source.len()], vec![F8E4M3Fn(0); source.len()]];
    let reports = [1, 3].map(|threads| {
        let settings = Settings { threads, ..Settings::default() };
        cast_and_report(&source, &mut targets[threads / 2], settings).unwrap()
    });
    assert_eq!(reports[0], reports[1]);
    assert_eq!(targets[0], targets[1]);
}

#[test]
fn strides_choose_elements() {
    let data = ramp(24);
    let whole = Tensor::of(&data, &[4, 6]).unwrap();
    let bytes = whole.data();
    // Columns 5, 3 and 1 of the rows from the last to the first.
    let some = Tensor::strided(bytes, (3 * 6 + 5) * 4, Format::FLOAT32, &[4, 3], &[-24, -8]).unwrap();
    let mut target = [0f64; 12];
    some.cast(&mut target, Options::default()).unwrap();
    let expected: Vec<f64> =
        (0..4).rev().flat_map(|row| [5, 3, 1].map(|column| f64::from(data[row * 6 + column]))).collect();
    assert_eq!(target[..], expected[..]);
}

#[test]
fn elements_beyond_the_data_are_refused() {
    let data = [0u8; 64];
    let make = |offset, shape: &[usize], strides: &[isize]| {
        Tensor::strided(&data, offset, Format::FLOAT32, shape, strides).map(drop)
    };
    make(0, &[4, 4], &[16, 4]).unwrap();
    make(60, &[16], &[-4]).unwrap();
    make(60, &[1 << 40], &[0]).unwrap();
    make(usize::MAX, &[0, 5], &[isize::MAX, 1]).unwrap();
    for (offset, shape, strides) in [
        (0, &[4, 4][..], &[16, 5][..]),
        (61, &[1], &[4]),
        (56, &[16], &[-4]),
        (usize::MAX, &[1], &[1]),
        (0, &[2], &[isize::MAX]),
        (0, &[2], &[isize::MIN]),
    ] {
        let error = make(offset, shape, strides).unwrap_err();
        assert!(message(&error).contains("reaches from byte"), "{error}");
    }
    assert!(message(&make(0, &[4, 4], &[4]).unwrap_err()).contains("one for each axis"));
    let many = make(0, &[usize::MAX, usize::MAX], &[0, 0]).unwrap_err();
    assert!(message(&many).contains("more bytes than memory"), "{many}");
    let short = Tensor::new(&data, Format::FLOAT32, &[15]).unwrap_err();
    assert_eq!(short, Error::Length { argument: "data", length: 64, needed: 60 });
    let short = Tensor::of(&[1i16, 2], &[3]).unwrap_err();
    assert_eq!(short, Error::Length { argument: "elements", length: 2, needed: 3 });
}

#[test]
fn tensors_of_other_shapes_are_not_compared() {
    let data = ramp(6);
    let error =
        Tensor::of(&data, &[6]).unwrap().compare(&Tensor::of(&data, &[2, 3]).unwrap(), 1).unwrap_err();
    assert!(message(&error).contains("[6] and [2, 3]"));
}

#[test]
fn a_survey_counts_elements() {
    let survey = Tensor::of(&[0.0f32, -1.5, f32::NAN, 4.0], &[2, 2]).unwrap().survey(1).unwrap();
    let magnitudes = &survey.magnitudes;
    assert_eq!(
        (survey.count, magnitudes.zeros, magnitudes.nans, magnitudes.largest, magnitudes.smallest),
        (4, 1, 1, 4.0, 1.5)
    );
    assert!(magnitudes.binades().eq([(0, 1), (2, 1)]));
    assert!(Tensor::of(&[[0f32; 2]; 2], &[2]).unwrap().survey(1).is_err());
}

#[test]
fn every_scheme_is_quantized_and_decoded() {
    let weight = ramp(2 * 130 * 320);
    let tensor = Tensor::of(&weight, &[2, 130, 320]).unwrap();
    for scheme in schemes() {
        let quantized = quantize(&tensor, scheme, 2).unwrap();
        let mut decoded = vec![0f32; weight.len()];
        quantized.dequantize(&mut decoded, 2).unwrap();
        let comparison = tensor.compare(&Tensor::of(&decoded, tensor.shape()).unwrap(), 1).unwrap();
        let sqnr = comparison.report().unwrap().sqnr_db();
        let least = if scheme.starts_with("int2") { 9.0 } else { 16.0 };
        assert!(sqnr > least, "{scheme}: {sqnr} dB");
        assert_eq!(quantized, quantize(&tensor, scheme, 1).unwrap());
    }
}

#[test]
fn weights_that_cannot_be_quantized_are_refused() {
    let data = ramp(64);
    let of = |shape: &[usize]| Tensor::of(&data, shape).unwrap();
    assert!(message(&quantize(&of(&[64]), "nvfp4", 1).unwrap_err()).contains("rows and columns"));
    assert!(matches!(
        quantize(&of(&[2, 32]), "nvfp5", 1),
        Err(Error::UnknownOption { argument: "scheme", .. })
    ));
    let integers = [1i32; 64];
    assert!(quantize(&Tensor::of(&integers, &[2, 32]).unwrap(), "nvfp4", 1).is_err());
    let mut infinite = data.clone();
    infinite[7] = f32::INFINITY;
    for scheme in schemes() {
        let error = quantize(&Tensor::of(&infinite, &[2, 32]).unwrap(), scheme, 1).unwrap_err();
        assert!(message(&error).contains("inf"), "{scheme}: {error}");
    }
    for scheme in schemes() {
        let empty = quantize(&Tensor::of::<f32>(&[], &[0, 32]).unwrap(), scheme, 1).unwrap();
        empty.dequantize::<f32>(&mut [], 1).unwrap();
    }
}

#[test]
fn bytes_of_bools_become_one() {
    let tensor = Tensor::new(&[0, 1, 2, 255], Format::BOOL, &[4]).unwrap();
    let mut flags = [true; 4];
    tensor.cast(&mut flags, Options::default()).unwrap();
    assert_eq!(flags.map(u8::from), [0, 1, 1, 1]);
}

#[test]
fn empty_tensors_of_any_lengths_and_strides_are_nothing() {
    let huge = Tensor::new(&[], Format::FLOAT32, &[usize::MAX, 2, 0]).unwrap_err();
    assert!(message(&huge).contains("more bytes than memory"));
    let data = [0u8; 4];
    let tensors = [isize::MIN, isize::MAX]
        .map(|stride| Tensor::strided(&data, usize::MAX, Format::FLOAT32, &[0, 3], &[0, stride]).unwrap());
    assert_eq!(tensors[0].compare(&tensors[1], 2).unwrap().count, 0);
    assert_eq!(tensors[0].survey(2).unwrap().count, 0);
    tensors[0].cast::<f64>(&mut [], Options::default()).unwrap();
    for scheme in schemes() {
        quantize(&tensors[0], scheme, 1).unwrap();
        assert!(quantize(&Tensor::of::<i32>(&[], &[0, 32]).unwrap(), scheme, 1).is_err());
    }
}

#[test]
fn wide_weights_are_quantized_as_far_as_scales_reach() {
    let weight: Vec<f64> = ramp(64).into_iter().map(f64::from).collect();
    let large = [1e300f64; 64];
    for scheme in schemes() {
        let quantized = quantize(&Tensor::of(&weight, &[2, 32]).unwrap(), scheme, 1).unwrap();
        let mut decoded = [0f64; 64];
        quantized.dequantize(&mut decoded, 1).unwrap();
        let far = weight.iter().zip(&decoded).filter(|(x, y)| (*x - *y).abs() > 0.2).count();
        assert_eq!(far, 0, "{scheme}");
        let error = quantize(&Tensor::of(&large, &[2, 32]).unwrap(), scheme, 1).unwrap_err();
        assert!(message(&error).contains("1e300"), "{error}");
    }
}

#[test]
fn fields_that_contradict_each_other_are_refused() {
    let weight = ramp(64);
    let quantized = quantize(&Tensor::of(&weight, &[2, 32]).unwrap(), "int4_group", 1).unwrap();
    let mut target = [0f32; 64];
    let mut refuse = |change: fn(&mut Quantized)| {
        let mut changed = quantized.clone();
        change(&mut changed);
        changed.dequantize(&mut target, 1).unwrap_err()
    };
    refuse(|changed| changed.shape = vec![4, 32]);
    refuse(|changed| changed.shape = vec![1 << 40, 1 << 40]);
    refuse(|changed| changed.shape = vec![64]);
    refuse(|changed| changed.shape = vec![32, 2]);
    refuse(|changed| changed.data.truncate(5));
    refuse(|changed| changed.scale.clear());
    refuse(|changed| changed.scale_shape = vec![1, 2]);
    refuse(|changed| changed.scale_format = Format::FLOAT64);
    refuse(|changed| changed.scheme = "int4");
    refuse(|changed| changed.global_scale = Some(1.0));
}
