//! Which Arrow types do all readers share? Every layout has a nearest type among them.
//!
//! Readers of Parquet break on unsigned integers, half floats, views, dictionaries, maps and nanoseconds, each on another one.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, TimeUnit};
use arrow::error::ArrowError;

/// Name of a list's inner field, as Parquet's standard has it.
const ELEMENT: &str = "element";

/// What a column is converted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// To be written again. A u64 becomes an i64, and a value above its range is a fault.
    Output,
    /// To be read as values here. A u64 stays, a time zone is given by its offset, and bytes that are no text are refused.
    Reading,
}

/// The nearest type to `from`; the error names the part that has none.
pub(super) fn portable(from: &DataType, wanted: Use) -> Result<DataType, String> {
    let same = |inner: &DataType| portable(inner, wanted);
    Ok(match from {
        DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Decimal128(..) => from.clone(),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => DataType::Int64,
        DataType::UInt64 if wanted == Use::Reading => DataType::UInt64,
        DataType::UInt64 | DataType::Duration(_) => DataType::Int64,
        DataType::Float16 => DataType::Float32,
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::FixedSizeBinary(_) if wanted == Use::Reading => return Err(format!("{from} is no text")),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Date64 => DataType::Date32,
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        // instants are stored in UTC whatever the zone; its name means nothing without a data base of zones
        DataType::Timestamp(_, Some(_)) if wanted == Use::Reading => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => DataType::Decimal128(*precision, *scale),
        DataType::Decimal256(..) => DataType::Utf8,
        DataType::Dictionary(_, value) => same(value)?,
        DataType::RunEndEncoded(_, value) => same(value.data_type())?,
        DataType::List(inner)
        | DataType::LargeList(inner)
        | DataType::FixedSizeList(inner, _)
        | DataType::ListView(inner)
        | DataType::LargeListView(inner) => DataType::List(Arc::new(Field::new(ELEMENT, same(inner.data_type())?, true))),
        DataType::Struct(fields) => DataType::Struct(
            fields.iter().map(|field| Ok(Field::new(field.name(), same(field.data_type())?, true))).collect::<Result<_, String>>()?,
        ),
        DataType::Map(..) | DataType::Union(..) | DataType::Interval(_) => return Err(format!("{from} is a type that few readers know")),
    })
}

/// `array` as `to`, which [`portable`] gave for its type.
pub(super) fn convert(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() })
}
