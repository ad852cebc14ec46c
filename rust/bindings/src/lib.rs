//! `castwise._core`: Python objects in, Python objects out, no arithmetic.

#![deny(unsafe_code)]
#![allow(clippy::doc_markdown, reason = "docstrings are read in Python")]

#[expect(unsafe_code, reason = "what numpy's cast tables hold is called through pointers")]
mod accelerate;
mod arguments;
#[expect(unsafe_code, reason = "numpy's C interface, and the memory of its arrays")]
mod array;
#[expect(unsafe_code, reason = "Python's C interface: a descriptor")]
mod attribute;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod cast;
mod cast_options;
mod caster;
mod checkpoint;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod comparison;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod delayed_scaling;
mod dtypes;
#[expect(unsafe_code, reason = "takes descriptors of open files")]
mod engine;
mod error;
mod explain;
mod foreign;
mod format;
mod gguf;
mod keywords;
mod literal;
mod loss_scale;
mod names;
#[expect(unsafe_code, reason = "numpy's C interface")]
mod numpy;
#[expect(unsafe_code, reason = "numpy's C interface")]
mod numpy_table;
mod policy;
mod policy_map;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod quantization;
mod report;
mod runtime;
mod saved_state;
mod separation;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod small;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod survey;
#[expect(unsafe_code, reason = "hands arrays to the core")]
mod unscale;
#[expect(unsafe_code, reason = "Python's C interface: calls without a tuple and a dict")]
mod vectorcall;

/// The compiled half of castwise. Import `castwise` instead.
///
/// It needs no lock of a free-threaded interpreter: objects do not change or have locks of their own, and what is read of
/// an array is checked and used as it was read. What is open is numpy's to mend: it changes the shape of an array in place
/// in several steps, between which another thread may read it.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::accelerate::{accelerated_pairs, set_accelerated};
    #[pymodule_export]
    use super::array::reading::read_array;
    #[pymodule_export]
    use super::checkpoint::{build_safetensors_header, parse_safetensors_header};
    #[pymodule_export]
    use super::comparison::{Comparison, compare, compare_stacks, have_same_bits, report_losses};
    #[pymodule_export]
    use super::delayed_scaling::{DelayedScaling, restore_delayed_scaling};
    #[pymodule_export]
    use super::engine::{ElementCast, OpenFile, convert_tensors, rearrange_items};
    #[pymodule_export]
    use super::error::UnfitError;
    #[pymodule_export]
    use super::explain::explain_cast;
    #[pymodule_export]
    use super::format::{FormatInfo, finfo, formats};
    #[pymodule_export]
    use super::gguf::{parse_gguf_array, parse_gguf_header};
    #[pymodule_export]
    use super::literal::parse_literal;
    #[pymodule_export]
    use super::loss_scale::{DynamicLossScale, FixedLossScale, restore_loss_scale};
    #[pymodule_export]
    use super::names::{format_name, gguf_type, likely_names};
    #[pymodule_export]
    use super::policy::{
        PolicyBase, dtype_word, floatx_dtypes, mixed_compute_dtype, parse_assignment, parse_dtype,
        parse_policy,
    };
    #[pymodule_export]
    use super::policy_map::{PyPolicyMap, nearest_texts};
    #[pymodule_export]
    use super::quantization::block_types::{block_types, decode_block_type, encode_block_type};
    #[pymodule_export]
    use super::quantization::{
        BlockDecoder, BlockEncoder, block_amax, compare_stored, decode_blocks, encode_blocks, global_scale,
        pack_codes, report_stored, schemes, swizzle_scales, unpack_codes, unswizzle_scales,
    };
    #[pymodule_export]
    use super::report::{CastReport, restore_report};
    #[pymodule_export]
    use super::runtime::{
        cpu_level, cpu_levels, get_num_threads, in_default_environment, set_cpu_level, set_kept_memory,
        set_num_threads,
    };
    #[pymodule_export]
    use super::survey::{SurveyTables, restore_survey, sum_surveys, survey_array, survey_rows};
    #[pymodule_export]
    use super::unscale::{arrays_finite, unscale_arrays};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let cast = pyo3::wrap_pyfunction!(super::cast::cast, module)?;
        module.add("cast", super::vectorcall::function::<super::small::Cast>(&cast)?)?;
        let py = module.py();
        super::numpy_table::entries(py)?;
        super::policy::keep_dtypes(py)?;
        module.add("caster", super::vectorcall::class::<super::caster::Caster>(py, c"castwise.caster")?)?;
        module.add("environment_errors", super::runtime::read_environment())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
