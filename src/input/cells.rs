//! What does a cell of a Parquet file hold, as JSON? So that rows of both formats take one way.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use serde_json::{Map, Number, Value};

use super::portable::{Use, convert, portable};

/// Whether cells of this type can be read; the error says which part cannot.
pub(super) fn readable(data_type: &DataType) -> Result<(), String> {
    portable(data_type, Use::Reading).map(drop)
}

/// `array` in one of the few layouts that [`cell`] reads.
pub(super) fn plain(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let to = portable(array.data_type(), Use::Reading).map_err(ArrowError::CastError)?;
    convert(array, &to)
}

/// The cell `row` of an array that [`plain`] made.
pub(super) fn cell(array: &dyn Array, row: usize) -> Result<Value, ArrowError> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).into(),
        DataType::Float32 => shortest(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        // text that its writer did not mark as such
        DataType::Binary => String::from_utf8_lossy(array.as_binary::<i32>().value(row)).into(),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            (0..items.len()).map(|at| cell(&items, at)).collect::<Result<Vec<_>, _>>()?.into()
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let entry = |(field, column): (&arrow::datatypes::FieldRef, &ArrayRef)| Ok((field.name().clone(), cell(column, row)?));
            fields.iter().zip(columns).map(entry).collect::<Result<Map<_, _>, ArrowError>>()?.into()
        }
        _ => array_value_to_string(array, row)?.into(),
    })
}

/// JSON has no NaN and no infinity; as text they fail wherever a number is wanted, by name.
fn float(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}

/// The double that reads as the single-precision `value` does: 0.1, not 0.10000000149.
fn shortest(value: f32) -> Value {
    float(value.to_string().parse().unwrap_or(f64::from(value)))
}
