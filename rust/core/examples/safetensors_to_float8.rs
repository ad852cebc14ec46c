//! Casts the floats of a safetensors file to float8, and prints what each tensor lost: `safetensors_to_float8 SRC DST`.

use std::error::Error;

use castwise_core::{F8E4M3Fn, Format, Options, Overflow, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

fn to_float8(file: &[u8]) -> Result<(Vec<u8>, Vec<String>), Box<dyn Error>> {
    let mut tensors = Vec::new();
    let mut lines = Vec::new();
    let options = Options { overflow: Overflow::Saturate, ..Options::default() };
    for (name, view) in SafeTensors::deserialize(file)?.tensors() {
        let shape = view.shape().to_vec();
        let format = match view.dtype() {
            Dtype::F32 => Format::FLOAT32,
            Dtype::F16 => Format::FLOAT16,
            Dtype::BF16 => Format::BFLOAT16,
            dtype => {
                tensors.push((name, dtype, shape, view.data().to_vec()));
                continue;
            }
        };
        let tensor = Tensor::new(view.data(), format, &shape)?;
        let mut codes = vec![F8E4M3Fn(0); shape.iter().product()];
        let report = tensor.cast_and_report(&mut codes, options)?;
        let comparison = tensor.compare(&Tensor::of(&codes, &shape)?, 1)?;
        lines.push(format!(
            "{name}: {} of {} values differ, {} saturated, SQNR {:.1} dB",
            comparison.different,
            report.count,
            report.saturated,
            report.sqnr_db()
        ));
        tensors.push((name, Dtype::F8_E4M3, shape, codes.iter().map(|code| code.0).collect()));
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        TensorView::new(*dtype, shape.clone(), data).map(|view| (name.clone(), view))
    });
    Ok((serialize(views.collect::<Result<Vec<_>, _>>()?, None)?, lines))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, destination] = arguments.as_slice() else {
        return Err("arguments: SRC DST".into());
    };
    let (file, lines) = to_float8(&std::fs::read(source)?)?;
    std::fs::write(destination, file)?;
    for line in lines {
        eprintln!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_become_float8_and_integers_stay() -> Result<(), Box<dyn Error>> {
        let weight: Vec<u8> = [1.0f32, 500.0, -3.3, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let ids: Vec<u8> = [7i64].iter().flat_map(|x| x.to_le_bytes()).collect();
        let file = serialize(
            [
                ("weight", TensorView::new(Dtype::F32, vec![2, 2], &weight)?),
                ("ids", TensorView::new(Dtype::I64, vec![1], &ids)?),
            ],
            None,
        )?;
        let (small, lines) = to_float8(&file)?;
        let small = SafeTensors::deserialize(&small)?;
        assert_eq!(small.tensor("weight")?.data(), [0x38, 0x7e, 0xc5, 0x00]);
        assert_eq!(small.tensor("ids")?.data(), ids);
        assert!(lines[0].starts_with("weight: 2 of 4 values differ, 1 saturated"), "{}", lines[0]);
        Ok(())
    }
}
