from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_INT64: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_UINT32: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]
    DTYPE_INT64_DELTA: _ClassVar[DType]

class OnNonfinite(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_NONFINITE_REFUSE: _ClassVar[OnNonfinite]
    ON_NONFINITE_SKIP: _ClassVar[OnNonfinite]

class PoolingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_MODE_SUM: _ClassVar[PoolingMode]
    POOLING_MODE_MEAN: _ClassVar[PoolingMode]

class KeySpace(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_SPACE_DENSE: _ClassVar[KeySpace]
    KEY_SPACE_SPARSE: _ClassVar[KeySpace]

class Retention(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETENTION_UNSPECIFIED: _ClassVar[Retention]
    RETENTION_PROTECTED: _ClassVar[Retention]
    RETENTION_ROUTINE: _ClassVar[Retention]
    RETENTION_DROPPED: _ClassVar[Retention]

class Waits(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITS_LATE: _ClassVar[Waits]
    WAITS_NONE: _ClassVar[Waits]
    WAITS_MIXED: _ClassVar[Waits]

class ProfileSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROFILE_SOURCE_COUNTED: _ClassVar[ProfileSource]
    PROFILE_SOURCE_IMPORTED: _ClassVar[ProfileSource]
DTYPE_UNSPECIFIED: DType
DTYPE_INT64: DType
DTYPE_FLOAT32: DType
DTYPE_UINT32: DType
DTYPE_FLOAT16: DType
DTYPE_BFLOAT16: DType
DTYPE_UINT8: DType
DTYPE_INT64_DELTA: DType
ON_NONFINITE_REFUSE: OnNonfinite
ON_NONFINITE_SKIP: OnNonfinite
POOLING_MODE_SUM: PoolingMode
POOLING_MODE_MEAN: PoolingMode
KEY_SPACE_DENSE: KeySpace
KEY_SPACE_SPARSE: KeySpace
RETENTION_UNSPECIFIED: Retention
RETENTION_PROTECTED: Retention
RETENTION_ROUTINE: Retention
RETENTION_DROPPED: Retention
WAITS_LATE: Waits
WAITS_NONE: Waits
WAITS_MIXED: Waits
PROFILE_SOURCE_COUNTED: ProfileSource
PROFILE_SOURCE_IMPORTED: ProfileSource

class Context(_message.Message):
    __slots__ = ("store_id", "epoch", "command", "instance")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    epoch: int
    command: int
    instance: str
    def __init__(self, store_id: _Optional[str] = ..., epoch: _Optional[int] = ..., command: _Optional[int] = ..., instance: _Optional[str] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("client_id", "sequence", "finished_below", "attempt", "instance", "epoch", "rank", "step", "store_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_BELOW_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    sequence: int
    finished_below: int
    attempt: int
    instance: str
    epoch: int
    rank: int
    step: int
    store_id: str
    def __init__(self, client_id: _Optional[str] = ..., sequence: _Optional[int] = ..., finished_below: _Optional[int] = ..., attempt: _Optional[int] = ..., instance: _Optional[str] = ..., epoch: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., store_id: _Optional[str] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("stages",)
    STAGES_FIELD_NUMBER: _ClassVar[int]
    stages: bool
    def __init__(self, stages: bool = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "offset", "size")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    size: int
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("total_bytes", "piece")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    piece: bytes
    def __init__(self, total_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class TableKeys(_message.Message):
    __slots__ = ("table", "table_id", "keys", "counts")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    keys: Array
    counts: Array
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ..., keys: _Optional[_Union[Array, _Mapping]] = ..., counts: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class TableGradients(_message.Message):
    __slots__ = ("table", "table_id", "keys", "gradients")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    keys: Array
    gradients: Array
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ..., keys: _Optional[_Union[Array, _Mapping]] = ..., gradients: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class PooledKeys(_message.Message):
    __slots__ = ("table", "table_id", "keys", "bags")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BAGS_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    keys: Array
    bags: Bags
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ..., keys: _Optional[_Union[Array, _Mapping]] = ..., bags: _Optional[_Union[Bags, _Mapping]] = ...) -> None: ...

class PooledGradients(_message.Message):
    __slots__ = ("table", "table_id", "keys", "gradients", "bags")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    BAGS_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    keys: Array
    gradients: Array
    bags: Bags
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ..., keys: _Optional[_Union[Array, _Mapping]] = ..., gradients: _Optional[_Union[Array, _Mapping]] = ..., bags: _Optional[_Union[Bags, _Mapping]] = ...) -> None: ...

class UpdateOptions(_message.Message):
    __slots__ = ("learning_rate", "gradient_scale", "on_nonfinite", "learning_rates")
    class LearningRatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SCALE_FIELD_NUMBER: _ClassVar[int]
    ON_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    gradient_scale: float
    on_nonfinite: OnNonfinite
    learning_rates: _containers.ScalarMap[str, float]
    def __init__(self, learning_rate: _Optional[float] = ..., gradient_scale: _Optional[float] = ..., on_nonfinite: _Optional[_Union[OnNonfinite, str]] = ..., learning_rates: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Bags(_message.Message):
    __slots__ = ("offsets", "mode", "weights")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    offsets: Array
    mode: PoolingMode
    weights: Array
    def __init__(self, offsets: _Optional[_Union[Array, _Mapping]] = ..., mode: _Optional[_Union[PoolingMode, str]] = ..., weights: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("tables", "admit", "trace", "rows_dtype")
        TABLES_FIELD_NUMBER: _ClassVar[int]
        ADMIT_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        ROWS_DTYPE_FIELD_NUMBER: _ClassVar[int]
        tables: _containers.RepeatedCompositeFieldContainer[TableKeys]
        admit: bool
        trace: Trace
        rows_dtype: DType
        def __init__(self, tables: _Optional[_Iterable[_Union[TableKeys, _Mapping]]] = ..., admit: bool = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., rows_dtype: _Optional[_Union[DType, str]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: LookupRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[LookupRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class LookupPooledRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("tables", "admit", "trace", "rows_dtype")
        TABLES_FIELD_NUMBER: _ClassVar[int]
        ADMIT_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        ROWS_DTYPE_FIELD_NUMBER: _ClassVar[int]
        tables: _containers.RepeatedCompositeFieldContainer[PooledKeys]
        admit: bool
        trace: Trace
        rows_dtype: DType
        def __init__(self, tables: _Optional[_Iterable[_Union[PooledKeys, _Mapping]]] = ..., admit: bool = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., rows_dtype: _Optional[_Union[DType, str]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: LookupPooledRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[LookupPooledRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ReadRowsRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("keys", "trace")
        KEYS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        keys: TableKeys
        trace: Trace
        def __init__(self, keys: _Optional[_Union[TableKeys, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ReadRowsRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[ReadRowsRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class RowsReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "rows", "state", "t")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        T_FIELD_NUMBER: _ClassVar[int]
        table: str
        rows: Array
        state: Array
        t: int
        def __init__(self, table: _Optional[str] = ..., rows: _Optional[_Union[Array, _Mapping]] = ..., state: _Optional[_Union[Array, _Mapping]] = ..., t: _Optional[int] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("context", "tables", "stage_seconds")
        class StageSecondsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: float
            def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
        context: Context
        tables: _containers.RepeatedCompositeFieldContainer[RowsReply.Table]
        stage_seconds: _containers.ScalarMap[str, float]
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[RowsReply.Table, _Mapping]]] = ..., stage_seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: RowsReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[RowsReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("origin", "tables", "options", "trace")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        tables: _containers.RepeatedCompositeFieldContainer[TableGradients]
        options: UpdateOptions
        trace: Trace
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableGradients, _Mapping]]] = ..., options: _Optional[_Union[UpdateOptions, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: UpdateRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[UpdateRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class UpdatePooledRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("origin", "tables", "options", "trace")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        tables: _containers.RepeatedCompositeFieldContainer[PooledGradients]
        options: UpdateOptions
        trace: Trace
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[PooledGradients, _Mapping]]] = ..., options: _Optional[_Union[UpdateOptions, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: UpdatePooledRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[UpdatePooledRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class UpdateRanksRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Rank(_message.Message):
        __slots__ = ("tables",)
        TABLES_FIELD_NUMBER: _ClassVar[int]
        tables: _containers.RepeatedCompositeFieldContainer[TableGradients]
        def __init__(self, tables: _Optional[_Iterable[_Union[TableGradients, _Mapping]]] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("origin", "ranks", "options", "trace")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        RANKS_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        ranks: _containers.RepeatedCompositeFieldContainer[UpdateRanksRequest.Rank]
        options: UpdateOptions
        trace: Trace
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[UpdateRanksRequest.Rank, _Mapping]]] = ..., options: _Optional[_Union[UpdateOptions, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: UpdateRanksRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[UpdateRanksRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class AssignRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("origin", "keys", "rows", "trace")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        keys: TableKeys
        rows: Array
        trace: Trace
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., keys: _Optional[_Union[TableKeys, _Mapping]] = ..., rows: _Optional[_Union[Array, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: AssignRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[AssignRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class DeleteRowsRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("origin", "keys", "trace", "moved", "member")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        MOVED_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        keys: TableKeys
        trace: Trace
        moved: bool
        member: str
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., keys: _Optional[_Union[TableKeys, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., moved: bool = ..., member: _Optional[str] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: DeleteRowsRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[DeleteRowsRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class DeletedReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "t", "rows", "stage_seconds")
        class StageSecondsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: float
            def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        T_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
        context: Context
        t: int
        rows: int
        stage_seconds: _containers.ScalarMap[str, float]
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., t: _Optional[int] = ..., rows: _Optional[int] = ..., stage_seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: DeletedReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[DeletedReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PutRowsRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("origin", "keys", "weights", "state", "add_t", "trace", "moved")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        WEIGHTS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        ADD_T_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        MOVED_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        keys: TableKeys
        weights: Array
        state: Array
        add_t: int
        trace: Trace
        moved: bool
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., keys: _Optional[_Union[TableKeys, _Mapping]] = ..., weights: _Optional[_Union[Array, _Mapping]] = ..., state: _Optional[_Union[Array, _Mapping]] = ..., add_t: _Optional[int] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., moved: bool = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: PutRowsRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[PutRowsRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class BulkAcknowledgedReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "t", "skipped", "stage_seconds")
        class TEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: int
            def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
        class StageSecondsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: float
            def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        T_FIELD_NUMBER: _ClassVar[int]
        SKIPPED_FIELD_NUMBER: _ClassVar[int]
        STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
        context: Context
        t: _containers.ScalarMap[str, int]
        skipped: bool
        stage_seconds: _containers.ScalarMap[str, float]
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., t: _Optional[_Mapping[str, int]] = ..., skipped: bool = ..., stage_seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: BulkAcknowledgedReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[BulkAcknowledgedReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoReply(_message.Message):
    __slots__ = ("context", "version", "device", "policy", "cache_bytes", "read_only", "dtypes", "optimizers", "initializers", "key_spaces", "capabilities", "limits", "device_info", "process", "socket", "shard", "shard_map", "next_table_id")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    INITIALIZERS_FIELD_NUMBER: _ClassVar[int]
    KEY_SPACES_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INFO_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    NEXT_TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    context: Context
    version: str
    device: str
    policy: str
    cache_bytes: int
    read_only: bool
    dtypes: _containers.RepeatedScalarFieldContainer[DType]
    optimizers: _containers.RepeatedScalarFieldContainer[str]
    initializers: _containers.RepeatedScalarFieldContainer[str]
    key_spaces: _containers.RepeatedScalarFieldContainer[KeySpace]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    limits: ServerLimits
    device_info: DeviceInfo
    process: str
    socket: str
    shard: int
    shard_map: ShardMap
    next_table_id: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., policy: _Optional[str] = ..., cache_bytes: _Optional[int] = ..., read_only: bool = ..., dtypes: _Optional[_Iterable[_Union[DType, str]]] = ..., optimizers: _Optional[_Iterable[str]] = ..., initializers: _Optional[_Iterable[str]] = ..., key_spaces: _Optional[_Iterable[_Union[KeySpace, str]]] = ..., capabilities: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[ServerLimits, _Mapping]] = ..., device_info: _Optional[_Union[DeviceInfo, _Mapping]] = ..., process: _Optional[str] = ..., socket: _Optional[str] = ..., shard: _Optional[int] = ..., shard_map: _Optional[_Union[ShardMap, _Mapping]] = ..., next_table_id: _Optional[int] = ...) -> None: ...

class ShardMap(_message.Message):
    __slots__ = ("cluster", "version", "shards", "owners")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    version: int
    shards: _containers.RepeatedScalarFieldContainer[str]
    owners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cluster: _Optional[str] = ..., version: _Optional[int] = ..., shards: _Optional[_Iterable[str]] = ..., owners: _Optional[_Iterable[int]] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ("model", "memory_bytes", "memory_free_bytes", "scratch_bytes", "threads", "multiprocessors", "driver_version", "runtime_version", "compile_seconds")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSORS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    memory_bytes: int
    memory_free_bytes: int
    scratch_bytes: int
    threads: int
    multiprocessors: int
    driver_version: str
    runtime_version: str
    compile_seconds: float
    def __init__(self, model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ..., scratch_bytes: _Optional[int] = ..., threads: _Optional[int] = ..., multiprocessors: _Optional[int] = ..., driver_version: _Optional[str] = ..., runtime_version: _Optional[str] = ..., compile_seconds: _Optional[float] = ...) -> None: ...

class ServerLimits(_message.Message):
    __slots__ = ("call_bytes_max", "unary_bytes_max", "chunk_bytes_max", "tables_max", "log_rows_max", "metadata_bytes_max", "queue_calls_max", "inflight_bytes_max", "remembered_calls_max", "call_timeout_s", "call_timeout_max_s")
    CALL_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    UNARY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    TABLES_MAX_FIELD_NUMBER: _ClassVar[int]
    LOG_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    METADATA_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CALLS_MAX_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_CALLS_MAX_FIELD_NUMBER: _ClassVar[int]
    CALL_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CALL_TIMEOUT_MAX_S_FIELD_NUMBER: _ClassVar[int]
    call_bytes_max: int
    unary_bytes_max: int
    chunk_bytes_max: int
    tables_max: int
    log_rows_max: int
    metadata_bytes_max: int
    queue_calls_max: int
    inflight_bytes_max: int
    remembered_calls_max: int
    call_timeout_s: float
    call_timeout_max_s: float
    def __init__(self, call_bytes_max: _Optional[int] = ..., unary_bytes_max: _Optional[int] = ..., chunk_bytes_max: _Optional[int] = ..., tables_max: _Optional[int] = ..., log_rows_max: _Optional[int] = ..., metadata_bytes_max: _Optional[int] = ..., queue_calls_max: _Optional[int] = ..., inflight_bytes_max: _Optional[int] = ..., remembered_calls_max: _Optional[int] = ..., call_timeout_s: _Optional[float] = ..., call_timeout_max_s: _Optional[float] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class GetStatsReply(_message.Message):
    __slots__ = ("context", "json")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    context: Context
    json: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., json: _Optional[str] = ...) -> None: ...

class ResizeCacheRequest(_message.Message):
    __slots__ = ("cache_bytes",)
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    cache_bytes: int
    def __init__(self, cache_bytes: _Optional[int] = ...) -> None: ...

class ResizeCacheReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    def __init__(self, policy: _Optional[str] = ...) -> None: ...

class SetPolicyReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class CheckIntegrityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckIntegrityReply(_message.Message):
    __slots__ = ("context", "violation")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VIOLATION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    violation: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., violation: _Optional[str] = ...) -> None: ...

class Sgd(_message.Message):
    __slots__ = ("learning_rate", "weight_decay", "decoupled_weight_decay")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    DECOUPLED_WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    weight_decay: float
    decoupled_weight_decay: bool
    def __init__(self, learning_rate: _Optional[float] = ..., weight_decay: _Optional[float] = ..., decoupled_weight_decay: bool = ...) -> None: ...

class Adagrad(_message.Message):
    __slots__ = ("learning_rate", "epsilon", "initial_accumulator", "weight_decay", "decoupled_weight_decay")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    INITIAL_ACCUMULATOR_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    DECOUPLED_WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    epsilon: float
    initial_accumulator: float
    weight_decay: float
    decoupled_weight_decay: bool
    def __init__(self, learning_rate: _Optional[float] = ..., epsilon: _Optional[float] = ..., initial_accumulator: _Optional[float] = ..., weight_decay: _Optional[float] = ..., decoupled_weight_decay: bool = ...) -> None: ...

class RowWiseAdagrad(_message.Message):
    __slots__ = ("learning_rate", "epsilon", "initial_accumulator", "weight_decay", "decoupled_weight_decay")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    INITIAL_ACCUMULATOR_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    DECOUPLED_WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    epsilon: float
    initial_accumulator: float
    weight_decay: float
    decoupled_weight_decay: bool
    def __init__(self, learning_rate: _Optional[float] = ..., epsilon: _Optional[float] = ..., initial_accumulator: _Optional[float] = ..., weight_decay: _Optional[float] = ..., decoupled_weight_decay: bool = ...) -> None: ...

class Adam(_message.Message):
    __slots__ = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "decoupled_weight_decay")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    DECOUPLED_WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    decoupled_weight_decay: bool
    def __init__(self, learning_rate: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., epsilon: _Optional[float] = ..., weight_decay: _Optional[float] = ..., decoupled_weight_decay: bool = ...) -> None: ...

class Ftrl(_message.Message):
    __slots__ = ("learning_rate", "beta", "l1", "l2")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    L1_FIELD_NUMBER: _ClassVar[int]
    L2_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    beta: float
    l1: float
    l2: float
    def __init__(self, learning_rate: _Optional[float] = ..., beta: _Optional[float] = ..., l1: _Optional[float] = ..., l2: _Optional[float] = ...) -> None: ...

class Uniform(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class Normal(_message.Message):
    __slots__ = ("mean", "std")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    mean: float
    std: float
    def __init__(self, mean: _Optional[float] = ..., std: _Optional[float] = ...) -> None: ...

class Constant(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: float
    def __init__(self, value: _Optional[float] = ...) -> None: ...

class TableConfig(_message.Message):
    __slots__ = ("name", "dim", "rows", "sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl", "uniform", "normal", "constant", "seed", "key_space")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SGD_FIELD_NUMBER: _ClassVar[int]
    ADAGRAD_FIELD_NUMBER: _ClassVar[int]
    ROWWISE_ADAGRAD_FIELD_NUMBER: _ClassVar[int]
    ADAM_FIELD_NUMBER: _ClassVar[int]
    FTRL_FIELD_NUMBER: _ClassVar[int]
    UNIFORM_FIELD_NUMBER: _ClassVar[int]
    NORMAL_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    KEY_SPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    rows: int
    sgd: Sgd
    adagrad: Adagrad
    rowwise_adagrad: RowWiseAdagrad
    adam: Adam
    ftrl: Ftrl
    uniform: Uniform
    normal: Normal
    constant: Constant
    seed: int
    key_space: KeySpace
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., rows: _Optional[int] = ..., sgd: _Optional[_Union[Sgd, _Mapping]] = ..., adagrad: _Optional[_Union[Adagrad, _Mapping]] = ..., rowwise_adagrad: _Optional[_Union[RowWiseAdagrad, _Mapping]] = ..., adam: _Optional[_Union[Adam, _Mapping]] = ..., ftrl: _Optional[_Union[Ftrl, _Mapping]] = ..., uniform: _Optional[_Union[Uniform, _Mapping]] = ..., normal: _Optional[_Union[Normal, _Mapping]] = ..., constant: _Optional[_Union[Constant, _Mapping]] = ..., seed: _Optional[int] = ..., key_space: _Optional[_Union[KeySpace, str]] = ...) -> None: ...

class TableDescription(_message.Message):
    __slots__ = ("config", "table_id", "t", "state_dim", "update_ids")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    STATE_DIM_FIELD_NUMBER: _ClassVar[int]
    UPDATE_IDS_FIELD_NUMBER: _ClassVar[int]
    config: TableConfig
    table_id: int
    t: int
    state_dim: int
    update_ids: int
    def __init__(self, config: _Optional[_Union[TableConfig, _Mapping]] = ..., table_id: _Optional[int] = ..., t: _Optional[int] = ..., state_dim: _Optional[int] = ..., update_ids: _Optional[int] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("origin", "config", "first_id")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    config: TableConfig
    first_id: int
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., config: _Optional[_Union[TableConfig, _Mapping]] = ..., first_id: _Optional[int] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class TableReply(_message.Message):
    __slots__ = ("context", "table")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    context: Context
    table: TableDescription
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., table: _Optional[_Union[TableDescription, _Mapping]] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesReply(_message.Message):
    __slots__ = ("context", "tables")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    context: Context
    tables: _containers.RepeatedCompositeFieldContainer[TableDescription]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableDescription, _Mapping]]] = ...) -> None: ...

class DropTableRequest(_message.Message):
    __slots__ = ("origin", "table", "table_id")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    table: str
    table_id: int
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class ClearTableRequest(_message.Message):
    __slots__ = ("origin", "table", "table_id", "member")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    table: str
    table_id: int
    member: str
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., table: _Optional[str] = ..., table_id: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class TableClearedReply(_message.Message):
    __slots__ = ("context", "t", "rows")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    t: int
    rows: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., t: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class GrowTableRequest(_message.Message):
    __slots__ = ("origin", "table", "table_id", "rows", "members")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    table: str
    table_id: int
    rows: int
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., table: _Optional[str] = ..., table_id: _Optional[int] = ..., rows: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class SetLearningRateRequest(_message.Message):
    __slots__ = ("origin", "table", "table_id", "learning_rate", "members")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    table: str
    table_id: int
    learning_rate: float
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., table: _Optional[str] = ..., table_id: _Optional[int] = ..., learning_rate: _Optional[float] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class AcknowledgedReply(_message.Message):
    __slots__ = ("context", "t")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    context: Context
    t: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., t: _Optional[int] = ...) -> None: ...

class GetDigestRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class GetDigestReply(_message.Message):
    __slots__ = ("context", "digest", "t")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    context: Context
    digest: str
    t: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., digest: _Optional[str] = ..., t: _Optional[int] = ...) -> None: ...

class GetLeavesRequest(_message.Message):
    __slots__ = ("table", "table_id", "low")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    low: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ..., low: _Optional[int] = ...) -> None: ...

class TableDigest(_message.Message):
    __slots__ = ("digest", "t", "command")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    digest: str
    t: int
    command: int
    def __init__(self, digest: _Optional[str] = ..., t: _Optional[int] = ..., command: _Optional[int] = ...) -> None: ...

class GetLeavesReply(_message.Message):
    __slots__ = ("context", "digest", "records")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    digest: TableDigest
    records: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., digest: _Optional[_Union[TableDigest, _Mapping]] = ..., records: _Optional[bytes] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("table", "table_id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    table_id: int
    def __init__(self, table: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class FlushReply(_message.Message):
    __slots__ = ("context", "rows")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    rows: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., rows: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("origin", "label", "metadata_json")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    label: str
    metadata_json: str
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., label: _Optional[str] = ..., metadata_json: _Optional[str] = ...) -> None: ...

class CheckpointDescription(_message.Message):
    __slots__ = ("label", "metadata_json", "command", "protected", "tables", "content")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    label: str
    metadata_json: str
    command: int
    protected: bool
    tables: int
    content: str
    def __init__(self, label: _Optional[str] = ..., metadata_json: _Optional[str] = ..., command: _Optional[int] = ..., protected: bool = ..., tables: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("context", "checkpoint")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    checkpoint: CheckpointDescription
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointDescription, _Mapping]] = ...) -> None: ...

class SetRetentionRequest(_message.Message):
    __slots__ = ("origin", "label", "retention", "mark")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    label: str
    retention: Retention
    mark: str
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., label: _Optional[str] = ..., retention: _Optional[_Union[Retention, str]] = ..., mark: _Optional[str] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCheckpointsReply(_message.Message):
    __slots__ = ("context", "checkpoints")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointDescription]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., checkpoints: _Optional[_Iterable[_Union[CheckpointDescription, _Mapping]]] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("destination", "label")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    destination: str
    label: str
    def __init__(self, destination: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class BackupFacts(_message.Message):
    __slots__ = ("label", "command", "files", "bytes", "new_files", "new_bytes")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NEW_FILES_FIELD_NUMBER: _ClassVar[int]
    NEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    label: str
    command: int
    files: int
    bytes: int
    new_files: int
    new_bytes: int
    def __init__(self, label: _Optional[str] = ..., command: _Optional[int] = ..., files: _Optional[int] = ..., bytes: _Optional[int] = ..., new_files: _Optional[int] = ..., new_bytes: _Optional[int] = ...) -> None: ...

class BackupReply(_message.Message):
    __slots__ = ("context", "backup")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    context: Context
    backup: BackupFacts
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., backup: _Optional[_Union[BackupFacts, _Mapping]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("origin", "label", "force")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    origin: Origin
    label: str
    force: bool
    def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., label: _Optional[str] = ..., force: bool = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PromoteReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class SetShardMapRequest(_message.Message):
    __slots__ = ("shard_map", "barrier")
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    shard_map: ShardMap
    barrier: Barrier
    def __init__(self, shard_map: _Optional[_Union[ShardMap, _Mapping]] = ..., barrier: _Optional[_Union[Barrier, _Mapping]] = ...) -> None: ...

class SetShardMapReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("command", "tables", "next_table_id", "places", "answered")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    command: int
    tables: _containers.RepeatedCompositeFieldContainer[TableDescription]
    next_table_id: int
    places: _containers.RepeatedCompositeFieldContainer[NamedPlace]
    answered: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, command: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableDescription, _Mapping]]] = ..., next_table_id: _Optional[int] = ..., places: _Optional[_Iterable[_Union[NamedPlace, _Mapping]]] = ..., answered: _Optional[_Iterable[int]] = ...) -> None: ...

class NamedPlace(_message.Message):
    __slots__ = ("session", "step", "table_ids")
    class TableIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TABLE_IDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    step: int
    table_ids: _containers.ScalarMap[str, int]
    def __init__(self, session: _Optional[str] = ..., step: _Optional[int] = ..., table_ids: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PauseWritesRequest(_message.Message):
    __slots__ = ("by", "until", "lease_ms", "given_up")
    BY_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    by: str
    until: Barrier
    lease_ms: int
    given_up: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, by: _Optional[str] = ..., until: _Optional[_Union[Barrier, _Mapping]] = ..., lease_ms: _Optional[int] = ..., given_up: _Optional[_Iterable[int]] = ...) -> None: ...

class PauseWritesReply(_message.Message):
    __slots__ = ("context", "barrier")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    context: Context
    barrier: Barrier
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., barrier: _Optional[_Union[Barrier, _Mapping]] = ...) -> None: ...

class ResumeWritesRequest(_message.Message):
    __slots__ = ("by", "complete")
    BY_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    by: str
    complete: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, by: _Optional[str] = ..., complete: _Optional[_Iterable[str]] = ...) -> None: ...

class ResumeWritesReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class OpenScanRequest(_message.Message):
    __slots__ = ("scan", "table", "table_id", "label", "since", "moved")
    SCAN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    scan: str
    table: str
    table_id: int
    label: str
    since: str
    moved: bool
    def __init__(self, scan: _Optional[str] = ..., table: _Optional[str] = ..., table_id: _Optional[int] = ..., label: _Optional[str] = ..., since: _Optional[str] = ..., moved: bool = ...) -> None: ...

class ScanDescription(_message.Message):
    __slots__ = ("table", "command", "rows", "since_command", "since_t", "deleted")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SINCE_COMMAND_FIELD_NUMBER: _ClassVar[int]
    SINCE_T_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    table: TableDescription
    command: int
    rows: int
    since_command: int
    since_t: int
    deleted: int
    def __init__(self, table: _Optional[_Union[TableDescription, _Mapping]] = ..., command: _Optional[int] = ..., rows: _Optional[int] = ..., since_command: _Optional[int] = ..., since_t: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class ScanReply(_message.Message):
    __slots__ = ("context", "scan")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    context: Context
    scan: ScanDescription
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., scan: _Optional[_Union[ScanDescription, _Mapping]] = ...) -> None: ...

class ReadScanRequest(_message.Message):
    __slots__ = ("scan", "table", "low", "rows", "with_state", "deleted")
    SCAN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WITH_STATE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    scan: str
    table: str
    low: int
    rows: int
    with_state: bool
    deleted: bool
    def __init__(self, scan: _Optional[str] = ..., table: _Optional[str] = ..., low: _Optional[int] = ..., rows: _Optional[int] = ..., with_state: bool = ..., deleted: bool = ...) -> None: ...

class ScannedRowsReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "keys", "rows", "state", "after")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        AFTER_FIELD_NUMBER: _ClassVar[int]
        context: Context
        keys: Array
        rows: Array
        state: Array
        after: int
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Union[Array, _Mapping]] = ..., rows: _Optional[_Union[Array, _Mapping]] = ..., state: _Optional[_Union[Array, _Mapping]] = ..., after: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ScannedRowsReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[ScannedRowsReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class CloseScanRequest(_message.Message):
    __slots__ = ("scan", "table")
    SCAN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    scan: str
    table: str
    def __init__(self, scan: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class ScanClosedReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("name", "tables", "lookahead_steps_max", "world_size", "planner", "shared", "lease_ms", "rank_timeout_ms", "waits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_STEPS_MAX_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RANK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    lookahead_steps_max: int
    world_size: int
    planner: str
    shared: bool
    lease_ms: int
    rank_timeout_ms: int
    waits: Waits
    def __init__(self, name: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., lookahead_steps_max: _Optional[int] = ..., world_size: _Optional[int] = ..., planner: _Optional[str] = ..., shared: bool = ..., lease_ms: _Optional[int] = ..., rank_timeout_ms: _Optional[int] = ..., waits: _Optional[_Union[Waits, str]] = ...) -> None: ...

class SessionDescription(_message.Message):
    __slots__ = ("name", "last_step", "tables", "lookahead_steps_max", "world_size", "planner", "shared", "lease_ms", "rank_timeout_ms", "waits", "written")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_STEPS_MAX_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RANK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    last_step: int
    tables: _containers.RepeatedScalarFieldContainer[str]
    lookahead_steps_max: int
    world_size: int
    planner: str
    shared: bool
    lease_ms: int
    rank_timeout_ms: int
    waits: Waits
    written: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., last_step: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ..., lookahead_steps_max: _Optional[int] = ..., world_size: _Optional[int] = ..., planner: _Optional[str] = ..., shared: bool = ..., lease_ms: _Optional[int] = ..., rank_timeout_ms: _Optional[int] = ..., waits: _Optional[_Union[Waits, str]] = ..., written: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionReply(_message.Message):
    __slots__ = ("context", "session")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    session: SessionDescription
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., session: _Optional[_Union[SessionDescription, _Mapping]] = ...) -> None: ...

class JoinSessionRequest(_message.Message):
    __slots__ = ("name", "rank", "member")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    rank: int
    member: str
    def __init__(self, name: _Optional[str] = ..., rank: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class MembershipReply(_message.Message):
    __slots__ = ("context", "member", "name", "rank", "last_step", "rank_timeout_ms")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    member: str
    name: str
    rank: int
    last_step: int
    rank_timeout_ms: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., member: _Optional[str] = ..., name: _Optional[str] = ..., rank: _Optional[int] = ..., last_step: _Optional[int] = ..., rank_timeout_ms: _Optional[int] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("member", "forget")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    member: str
    forget: bool
    def __init__(self, member: _Optional[str] = ..., forget: bool = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SessionClosedReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class ReleaseStepRequest(_message.Message):
    __slots__ = ("member", "step")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    member: str
    step: int
    def __init__(self, member: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class SkipStepRequest(_message.Message):
    __slots__ = ("member", "step")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    member: str
    step: int
    def __init__(self, member: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("context", "t", "skipped")
    class TEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    context: Context
    t: _containers.ScalarMap[str, int]
    skipped: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., t: _Optional[_Mapping[str, int]] = ..., skipped: bool = ...) -> None: ...

class AnnounceRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "keys")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        table: str
        keys: Array
        def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    class Step(_message.Message):
        __slots__ = ("step", "tables")
        STEP_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        step: int
        tables: _containers.RepeatedCompositeFieldContainer[AnnounceRequest.Table]
        def __init__(self, step: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[AnnounceRequest.Table, _Mapping]]] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("member", "steps", "is_last")
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        STEPS_FIELD_NUMBER: _ClassVar[int]
        IS_LAST_FIELD_NUMBER: _ClassVar[int]
        member: str
        steps: _containers.RepeatedCompositeFieldContainer[AnnounceRequest.Step]
        is_last: bool
        def __init__(self, member: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[AnnounceRequest.Step, _Mapping]]] = ..., is_last: bool = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: AnnounceRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[AnnounceRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class AnnouncedReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "announced_step", "planned_step", "held_back", "ranks_at_work")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        ANNOUNCED_STEP_FIELD_NUMBER: _ClassVar[int]
        PLANNED_STEP_FIELD_NUMBER: _ClassVar[int]
        HELD_BACK_FIELD_NUMBER: _ClassVar[int]
        RANKS_AT_WORK_FIELD_NUMBER: _ClassVar[int]
        context: Context
        announced_step: int
        planned_step: int
        held_back: bool
        ranks_at_work: int
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., announced_step: _Optional[int] = ..., planned_step: _Optional[int] = ..., held_back: bool = ..., ranks_at_work: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: AnnouncedReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[AnnouncedReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class LookupStepRequest(_message.Message):
    __slots__ = ("member", "step", "early", "rows_dtype")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    ROWS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    member: str
    step: int
    early: bool
    rows_dtype: DType
    def __init__(self, member: _Optional[str] = ..., step: _Optional[int] = ..., early: bool = ..., rows_dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class StepRowsReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "rows", "positions", "t")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        POSITIONS_FIELD_NUMBER: _ClassVar[int]
        T_FIELD_NUMBER: _ClassVar[int]
        table: str
        rows: Array
        positions: Array
        t: int
        def __init__(self, table: _Optional[str] = ..., rows: _Optional[_Union[Array, _Mapping]] = ..., positions: _Optional[_Union[Array, _Mapping]] = ..., t: _Optional[int] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("context", "tables", "early")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        EARLY_FIELD_NUMBER: _ClassVar[int]
        context: Context
        tables: _containers.RepeatedCompositeFieldContainer[StepRowsReply.Table]
        early: bool
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[StepRowsReply.Table, _Mapping]]] = ..., early: bool = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: StepRowsReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[StepRowsReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class LookupStepPooledRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "inverse", "bags")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        INVERSE_FIELD_NUMBER: _ClassVar[int]
        BAGS_FIELD_NUMBER: _ClassVar[int]
        table: str
        inverse: Array
        bags: Bags
        def __init__(self, table: _Optional[str] = ..., inverse: _Optional[_Union[Array, _Mapping]] = ..., bags: _Optional[_Union[Bags, _Mapping]] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("member", "step", "tables", "trace", "rows_dtype")
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        STEP_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        ROWS_DTYPE_FIELD_NUMBER: _ClassVar[int]
        member: str
        step: int
        tables: _containers.RepeatedCompositeFieldContainer[LookupStepPooledRequest.Table]
        trace: Trace
        rows_dtype: DType
        def __init__(self, member: _Optional[str] = ..., step: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[LookupStepPooledRequest.Table, _Mapping]]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., rows_dtype: _Optional[_Union[DType, str]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: LookupStepPooledRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[LookupStepPooledRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ReadStepRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "positions")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        POSITIONS_FIELD_NUMBER: _ClassVar[int]
        table: str
        positions: Array
        def __init__(self, table: _Optional[str] = ..., positions: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("member", "step", "tables")
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        STEP_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        member: str
        step: int
        tables: _containers.RepeatedCompositeFieldContainer[ReadStepRequest.Table]
        def __init__(self, member: _Optional[str] = ..., step: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[ReadStepRequest.Table, _Mapping]]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ReadStepRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[ReadStepRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class StepRecordsReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "rows", "state", "t")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        T_FIELD_NUMBER: _ClassVar[int]
        table: str
        rows: Array
        state: Array
        t: int
        def __init__(self, table: _Optional[str] = ..., rows: _Optional[_Union[Array, _Mapping]] = ..., state: _Optional[_Union[Array, _Mapping]] = ..., t: _Optional[int] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("context", "tables", "last_step")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        LAST_STEP_FIELD_NUMBER: _ClassVar[int]
        context: Context
        tables: _containers.RepeatedCompositeFieldContainer[StepRecordsReply.Table]
        last_step: int
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[StepRecordsReply.Table, _Mapping]]] = ..., last_step: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: StepRecordsReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[StepRecordsReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class UpdateStepRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "gradients", "positions", "inverse", "bags")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        GRADIENTS_FIELD_NUMBER: _ClassVar[int]
        POSITIONS_FIELD_NUMBER: _ClassVar[int]
        INVERSE_FIELD_NUMBER: _ClassVar[int]
        BAGS_FIELD_NUMBER: _ClassVar[int]
        table: str
        gradients: Array
        positions: Array
        inverse: Array
        bags: Bags
        def __init__(self, table: _Optional[str] = ..., gradients: _Optional[_Union[Array, _Mapping]] = ..., positions: _Optional[_Union[Array, _Mapping]] = ..., inverse: _Optional[_Union[Array, _Mapping]] = ..., bags: _Optional[_Union[Bags, _Mapping]] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("member", "step", "tables", "options", "trace", "rows_checksum", "is_finite")
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        STEP_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        ROWS_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
        IS_FINITE_FIELD_NUMBER: _ClassVar[int]
        member: str
        step: int
        tables: _containers.RepeatedCompositeFieldContainer[UpdateStepRequest.Table]
        options: UpdateOptions
        trace: Trace
        rows_checksum: int
        is_finite: bool
        def __init__(self, member: _Optional[str] = ..., step: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[UpdateStepRequest.Table, _Mapping]]] = ..., options: _Optional[_Union[UpdateOptions, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., rows_checksum: _Optional[int] = ..., is_finite: bool = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: UpdateStepRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[UpdateStepRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PutStepRowsRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Table(_message.Message):
        __slots__ = ("table", "keys", "weights", "state", "add_t")
        TABLE_FIELD_NUMBER: _ClassVar[int]
        KEYS_FIELD_NUMBER: _ClassVar[int]
        WEIGHTS_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        ADD_T_FIELD_NUMBER: _ClassVar[int]
        table: str
        keys: Array
        weights: Array
        state: Array
        add_t: int
        def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Union[Array, _Mapping]] = ..., weights: _Optional[_Union[Array, _Mapping]] = ..., state: _Optional[_Union[Array, _Mapping]] = ..., add_t: _Optional[int] = ...) -> None: ...
    class Header(_message.Message):
        __slots__ = ("origin", "member", "tables", "trace")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        TRACE_FIELD_NUMBER: _ClassVar[int]
        origin: Origin
        member: str
        tables: _containers.RepeatedCompositeFieldContainer[PutStepRowsRequest.Table]
        trace: Trace
        def __init__(self, origin: _Optional[_Union[Origin, _Mapping]] = ..., member: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[PutStepRowsRequest.Table, _Mapping]]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: PutStepRowsRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[PutStepRowsRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ExportProfileRequest(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: ProfileSource
    def __init__(self, source: _Optional[_Union[ProfileSource, str]] = ...) -> None: ...

class ProfileReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "profile")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        PROFILE_FIELD_NUMBER: _ClassVar[int]
        context: Context
        profile: Array
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., profile: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ProfileReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[ProfileReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ImportProfileRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("profile", "rename")
        class RenameEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        PROFILE_FIELD_NUMBER: _ClassVar[int]
        RENAME_FIELD_NUMBER: _ClassVar[int]
        profile: Array
        rename: _containers.ScalarMap[str, str]
        def __init__(self, profile: _Optional[_Union[Array, _Mapping]] = ..., rename: _Optional[_Mapping[str, str]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ImportProfileRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[ImportProfileRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ProfileImportedReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context",)
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        context: Context
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ProfileImportedReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[ProfileImportedReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class HotSetDescription(_message.Message):
    __slots__ = ("version", "rows", "bytes", "pinned_rows")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_ROWS_FIELD_NUMBER: _ClassVar[int]
    version: int
    rows: int
    bytes: int
    pinned_rows: int
    def __init__(self, version: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., pinned_rows: _Optional[int] = ...) -> None: ...

class PinHotSetRequest(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("hot_set",)
        HOT_SET_FIELD_NUMBER: _ClassVar[int]
        hot_set: Array
        def __init__(self, hot_set: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: PinHotSetRequest.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[PinHotSetRequest.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class HotSetPinnedReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "hot_set")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        HOT_SET_FIELD_NUMBER: _ClassVar[int]
        context: Context
        hot_set: HotSetDescription
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., hot_set: _Optional[_Union[HotSetDescription, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: HotSetPinnedReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[HotSetPinnedReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class GetHotSetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HotSetReply(_message.Message):
    __slots__ = ("header", "padding", "payload")
    class Header(_message.Message):
        __slots__ = ("context", "hot_set")
        CONTEXT_FIELD_NUMBER: _ClassVar[int]
        HOT_SET_FIELD_NUMBER: _ClassVar[int]
        context: Context
        hot_set: Array
        def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., hot_set: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: HotSetReply.Header
    padding: bytes
    payload: bytes
    def __init__(self, header: _Optional[_Union[HotSetReply.Header, _Mapping]] = ..., padding: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class UnpinHotSetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpinHotSetReply(_message.Message):
    __slots__ = ("context", "hot_set")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    HOT_SET_FIELD_NUMBER: _ClassVar[int]
    context: Context
    hot_set: HotSetDescription
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., hot_set: _Optional[_Union[HotSetDescription, _Mapping]] = ...) -> None: ...

class ClearCountsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClearCountsReply(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class WarmCacheRequest(_message.Message):
    __slots__ = ("share",)
    SHARE_FIELD_NUMBER: _ClassVar[int]
    share: float
    def __init__(self, share: _Optional[float] = ...) -> None: ...

class WarmCacheReply(_message.Message):
    __slots__ = ("context", "rows", "of", "finished")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    context: Context
    rows: int
    of: int
    finished: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., rows: _Optional[int] = ..., of: _Optional[int] = ..., finished: bool = ...) -> None: ...

class Promotion(_message.Message):
    __slots__ = ("id", "epoch", "command", "first_number")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    id: str
    epoch: int
    command: int
    first_number: int
    def __init__(self, id: _Optional[str] = ..., epoch: _Optional[int] = ..., command: _Optional[int] = ..., first_number: _Optional[int] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("id", "first")
    ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    id: int
    first: int
    def __init__(self, id: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("follower", "wanted", "durable")
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    follower: Follower
    wanted: Wanted
    durable: LogPlace
    def __init__(self, follower: _Optional[_Union[Follower, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., durable: _Optional[_Union[LogPlace, _Mapping]] = ...) -> None: ...

class Follower(_message.Message):
    __slots__ = ("store_id", "promotions", "command", "anew", "fences", "lives", "cluster", "shard")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMOTIONS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    promotions: _containers.RepeatedCompositeFieldContainer[Promotion]
    command: int
    anew: bool
    fences: bool
    lives: _containers.RepeatedCompositeFieldContainer[Life]
    cluster: str
    shard: int
    def __init__(self, store_id: _Optional[str] = ..., promotions: _Optional[_Iterable[_Union[Promotion, _Mapping]]] = ..., command: _Optional[int] = ..., anew: bool = ..., fences: bool = ..., lives: _Optional[_Iterable[_Union[Life, _Mapping]]] = ..., cluster: _Optional[str] = ..., shard: _Optional[int] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("paths",)
    PATHS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, paths: _Optional[_Iterable[str]] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("leader", "file", "log", "state")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    leader: Leader
    file: FilePiece
    log: LogPiece
    state: LeaderState
    def __init__(self, leader: _Optional[_Union[Leader, _Mapping]] = ..., file: _Optional[_Union[FilePiece, _Mapping]] = ..., log: _Optional[_Union[LogPiece, _Mapping]] = ..., state: _Optional[_Union[LeaderState, _Mapping]] = ...) -> None: ...

class Leader(_message.Message):
    __slots__ = ("store_id", "promotions", "catalogue")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMOTIONS_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    promotions: _containers.RepeatedCompositeFieldContainer[Promotion]
    catalogue: bytes
    def __init__(self, store_id: _Optional[str] = ..., promotions: _Optional[_Iterable[_Union[Promotion, _Mapping]]] = ..., catalogue: _Optional[bytes] = ...) -> None: ...

class FilePiece(_message.Message):
    __slots__ = ("offset", "piece")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    piece: bytes
    def __init__(self, offset: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class LogPlace(_message.Message):
    __slots__ = ("segment", "offset")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("begin", "piece")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    begin: LogPlace
    piece: bytes
    def __init__(self, begin: _Optional[_Union[LogPlace, _Mapping]] = ..., piece: _Optional[bytes] = ...) -> None: ...

class LeaderState(_message.Message):
    __slots__ = ("command",)
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    command: int
    def __init__(self, command: _Optional[int] = ...) -> None: ...
