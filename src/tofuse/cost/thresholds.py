"""Thresholds that steer decisions, by stage; properties of machines are in `machine.py`.

A title in quotes names the section of docs/measurements.md that a number comes from.
"""

# -- several stages ------------------------------------------------------------------------------
TOLERATED_EXCESS = 1 << 20  # bytes beyond eager's peak that do not count: "Partition"
ROW_STATISTICS_SHARE = 64  # a row of 64 has one number, as in attention: not measured
PEAK_TOLERANCE = 64 * 1024  # bytes of row statistics and seeds, not held by eager: not measured
MAX_KERNEL_STATEMENTS = 512  # and ops of a region; each cut costs memory: "Partition"
MEMORY_ROUND_TRIP = 40.0  # additions while an element is stored and loaded: not measured
MAX_ROW_BYTES_KEPT_BETWEEN_PASSES = 256 * 1024  # a quarter of L2: not measured
SHORT_ROW_BYTES = 512  # of rows too short to be prefetched: "Unroll factor, prefetch and hoisting"
UNKNOWN_SIZE = 4096  # stands for a size without a hint: not measured

# -- capture -------------------------------------------------------------------------------------
MIN_BRANCHES = 8  # vectorized without library calls; fewer fuse without: not measured
BYTES_PER_CALL = 100_000  # copied in the time of a library call: not measured
MIN_TRAINED_CHANNELS_LAST_CONVOLUTIONS = 2  # one keeps two copies: "Channels-last layout"
MIN_TRAINED_GAINING_IMAGE_SHARE = 0.5  # of images' bytes, in training: "Channels-last layout"
MIN_GAINING_IMAGE_SHARE = 0.25  # of images' bytes, in inference: "Channels-last layout"
IMAGE_BYTES_PER_WEIGHT_BYTE = 2.5  # from which images become channels last: "Channels-last layout"
MAX_RECOMPUTE_CHAIN = 30.0  # transcendental operations recomputed per saved value: not measured
CHEAP_OP = 0.05  # the count of any other operation in this chain: not measured
HALF_SOFTMAX = 0.6 * MAX_RECOMPUTE_CHAIN  # the count of a softmax in half precision: not measured
MIN_RECOMPUTED_PRODUCT_RATIO = 4  # smaller results are saved: "Chains of products"
MIN_RECOMPUTED_PRODUCT_DEPTH = 16  # fewer are unrolled, and rounded otherwise: not measured
MAX_RECOMPUTED_SIDE_RATIO = 8  # a copy has too few rows for its columns: not measured
RESULT_PRICE, ARGUMENT_PRICE = 1, 2  # of a saved byte; a result saves more work: "Peak memory"
REMAT_TRAFFIC_BYTES_PER_US = 40e3  # only the order of recomputations counts: not measured
REMAT_LIBRARY_FLOPS_PER_US = 50e3  # only the order of recomputations counts: not measured
FUSED_TRAFFIC = 0.25  # share of the traffic of an op that fuses with its users: not measured
PROBABILITY_ERROR = 2.0**-10  # of p and of 1 - p, relative, expressed by 16 bits: not measured
MAX_DEPTHWISE_FILTER_TAPS = 64  # each is a load and a product: not measured
SLOW_LIBRARY_TAPS, SLOW_LIBRARY_CHANNELS = 32, 16  # at most, or below: "Depthwise convolutions"
MAX_POOLING_WINDOW_TAPS = 27  # 3 x 3 x 3: not measured
MAX_RESIDUES = 16  # modulo the strides, each with a sum: not measured
MAX_CONSTANT_INDEX_ELEMENTS = 1 << 16  # more are not looked into: not measured
MAX_CONSTANT_INDEX_OPS = 32  # more are not evaluated: not measured
MAX_OVERLAP_STEPS = 2000  # until two views count as overlapping: not measured
MAX_UNROLLED_MATRIX = 4  # rows of a matrix too small for a library call: not measured

# -- passes --------------------------------------------------------------------------------------
MIN_WORK_PER_PACKED = 8  # work per element packed that pays for batching: not measured
MAX_HOISTED_COST = 4.0  # additions per element that a hoisted gather may repeat: not measured
MIN_SUMMED_PRODUCT_ROWS_PER_COLUMN = 8  # a layer has fewer: not measured
MAX_CONCAT_TO_PIECES_LENGTH_RATIO = 2  # more is mostly zeros: not measured

# -- fusion --------------------------------------------------------------------------------------
INEFFICIENCY = 1.5  # times the least time of a kernel: not measured
NEGLIGIBLE_US = 5.0  # about two launches; less does not justify a kernel: "Threads and launches"
MIN_OPS_OF_LARGE_KERNEL = 64  # smaller kernels are evaluated after each merge: "Partition"
MIN_GROWTH_OF_LARGE_KERNEL = 1.25  # until then no merge evaluates it: "Partition"
SEPARATE_KERNELS_TIME_SHARE = 0.9  # two kernels pay off below it: "Group normalization"
GPU_SPLIT_THRESHOLD = 0.7  # the same on a GPU, beyond the error of predictions: "GPU cost model"
MAX_KERNEL_BUFFERS = 64  # more become two kernels: not measured
MAX_READER_SHAPES = 8  # a value broadcast to more has its own kernel: not measured
MIN_SIBLING_SHARED_ELEMENTS = 1024  # fewer are not worth one read: not measured
MAX_SIBLINGS = 8  # readers of one tensor merged with the first: not measured
MAX_SHIFT_SHARE_OF_EXTENT = 0.25  # values farther apart are different ones: not measured
MIN_OVERLAP = 1.5  # reads of an element by windows, to compute it before: not measured
MAX_MEMORY_SPLIT_ROUNDS = 6  # few programs need two: not measured
MIN_ORDER_SAVING = 256 * 1024  # bytes; reordering may separate launches: not measured
MAX_COLLECTIVE_OVERLAP_EXTRA_PEAK_SHARE = 0.2  # work runs beside the collective: not measured
MIN_NONTEMPORAL_RESULT_BYTES = 8 << 20  # smaller ones go through the caches: "Nontemporal stores"
MAX_SUBSTITUTED_AXES_PER_READ = 8  # chains of slices have many: not measured
FEW_CONCAT_OPERANDS = 6  # the concat stays in its kernel: "Concat elimination"
MAX_CPU_CONCAT_OPERANDS = 12  # a loop each: "Concat elimination"
MIN_RUN_BYTES = 64  # contiguous in the concat; PyTorch copies shorter runs: not measured
EXPENSIVE_OPERAND = 8.0  # additions; nested concats share such an operand: not measured
LONG_ROW = 64  # contiguous elements along which vectors run well: not measured
MIN_SPLIT_RATIO = 8  # elements reduced for each of the intermediate: not measured

# -- schedule, on the CPU ------------------------------------------------------------------------
MAX_RECOMPUTE_COST = 3.0  # additions; values that cost more are spilled: not measured
MIN_HOIST_TRIPS = 8  # from which hoisting into an array pays: not measured
STRIDED_LOAD_COST = 8.0  # additions, a vector: not measured
MAX_FLAT_TASK_ELEMENTS = 4096  # a few microseconds of work: not measured
MIN_FLAT_TASK_ELEMENTS = 64  # expensive operations have the smallest tasks: not measured
CPU_TRANSPOSE_TILE = 16  # a vector; long axes have tiles of twice the side: "Register transposes"
MAX_COLUMNS_PER_TASK = 512  # reduced at a time; the prefetcher follows 2 KB: "Column tiles"
MAX_CACHED_COLUMNS = 2048  # whose sums fit in the L1 cache: "Column tiles"
PARAMETER_TILE = 64  # columns whose parameters stay in the L1 cache: not measured
L1_PARAMETER_BYTES = 8 * 1024  # rows need the rest: not measured
WHOLE_LINE_ELEMENTS = 32  # of two bytes or more, that fill whole cache lines: not measured
MIN_PREFETCHED_TENSOR_BYTES = 1 << 20  # a smaller one may be in L2: not measured
MIN_PASS_COST = 8.0  # additions that leave memory idle: "Unroll factor, prefetch and hoisting"
ROWS_AHEAD = 16  # prefetched, of short rows: "Unroll factor, prefetch and hoisting"
TUNED_VECTOR_AXIS_TILES = (1024, 4096, 16384)  # tried beside the chosen one: not measured
MAX_TUNED_UNROLL = 8  # autotuning tries no larger one: not measured
MIN_VECTOR_EXTENT = 16  # of the axis that vectors run along: not measured
MAX_SHORT_ROW = 8  # elements of a row that is always unrolled: "Unrolled short axes"
MAX_UNROLLED_AXIS_EXTENT = 4  # such an axis is always unrolled: "Unrolled short axes"
MAX_SHUFFLES_PER_LANE = 13  # to transpose a row reduced repeatedly: "Unrolled short axes"
MIN_GUARDS = 2  # with different formulas, to unroll a longer axis: not measured
ITERATIONS_PER_EXCLUSION = 4  # of such guards, on average: not measured
MAX_UNROLLED_STATEMENTS = 4096  # before dead ones are removed: not measured
FULL_ILP_CHAINS = 8.0  # that saturate a core: "Unroll factor, prefetch and hoisting"
WINDOW = 200.0  # additions that overlap anyway: "Unroll factor, prefetch and hoisting"
MAX_UNROLLED_BODY_STATEMENTS = 3 * MAX_KERNEL_STATEMENTS  # after the unroll factor: not measured

# -- graph passes: products in chunks of rows ----------------------------------------------------
CHUNKED_PRODUCT_BYTES = 64 << 20  # smaller ones are computed whole: "Losses of large vocabularies"
MIN_PRODUCT_CHUNK_BYTES = 16 << 20  # the last one may be smaller: "Losses of large vocabularies"
WIDE_SHARE = 2  # a value of 1/2 of a product's elements is chunked with it: not measured
MIN_WIDENING = 5  # columns of such a product for each of its first factor: not measured
MAX_CHUNKS = 16  # each is a copy of the ops, to compile: "Losses of large vocabularies"
MIN_CHUNKS = 4  # fewer hold little less: "Losses of large vocabularies"
MIN_CHUNK_ROWS = 512  # so that weights are read seldom: "Losses of large vocabularies"

# -- schedule, on a GPU --------------------------------------------------------------------------
MAX_KERNEL_LAUNCHES = 8  # one after another: not measured
POINTWISE_BLOCK = 1024  # elements of an instance: "GPU kernels"
POINTWISE_TENSOR_BYTES_PER_THREAD = 32  # two accesses of 16: "GPU kernels"
GPU_TRANSPOSE_TILE = 64  # side of a tile read along one axis, written along another: not measured
MAX_ROW_TILE = 2048  # elements of a tile of several rows: "GPU kernels"
MAX_COLUMNS = 64  # contiguous, that a program instance reduces: "GPU kernels"
MIN_COLUMNS = 8  # 32 bytes of floats, the unit of an access: "GPU kernels"
REGISTER_TILE = 16384  # elements of a row that is held in registers: "GPU kernels"
REGISTER_ROW = 32768  # the same for 4-byte elements; shorter types reload from L2: "GPU kernels"
HALF_ROW = 8192  # the same for shorter elements: "GPU kernels"
UNALIGNED_ROW = 1 << 16  # the same if rows are not aligned and have few results: "GPU kernels"
WIDEST_THREAD_ACCESS_BYTES = 16  # four floats: not measured
MIN_ALIGNED_ROW = 512  # elements of an unaligned row that is divided where it is: "GPU kernels"
LOOPED_ROW_BLOCK_ELEMENTS_PER_WARP = 256  # a loop walks the row in blocks: "GPU kernels"
LOOP_BLOCK = 8192  # elements of a block in a loop over a row: "GPU kernels"
MAX_CHUNK_ROWS = 128  # in a chunk of several columns: not measured
MIN_CHUNK = 64  # elements, for which two partial results are stored: not measured
LOOP_BLOCK_BESIDE_WHOLE = 1024  # the same beside whole rows in registers: not measured
MIN_WIDE_COLUMN_SUM = 1 << 22  # elements whose sums take wide columns, split by rows: not measured
MIN_SPLIT = 1 << 16  # elements of a reduction that program instances share: not measured
SPLITS_PER_SM = 2  # program instances that share a reduction: "GPU kernels"
SPLITS_PER_SM_BESIDE_WHOLE = 4  # the same with whole rows in registers: "GPU kernels"
SM_ELEMENTS_BESIDE_WHOLE = 4096  # of whole rows in all instances of a multiprocessor: "GPU kernels"
MIN_ROWS_OF_SPLIT = 4  # that an instance reduces, since it stores partial results: not measured
MAX_STAGES = 3  # iterations of such a loop in flight: "GPU kernels"
RESERVED_SHARED_BYTES = 8192  # for exchanges between warps, beside loads ahead: not measured
ACCUMULATED_ROW_ELEMENTS_PER_WARP = 512  # a loop adds to the whole row: "GPU kernels"
MAX_SPLIT_WARPS = 16  # of an instance of such a loop: "GPU kernels"
ELEMENTS_PER_WARP_OF_RESULT = 2048  # of rows that end in one result: "GPU kernels"
ELEMENTS_PER_WARP_ALONE = 256  # of the only instance of a launch: not measured
INSTANCES_PER_SM = 32  # that a multiprocessor holds: not measured
WARPS_PER_SM = 64  # that a multiprocessor holds, where registers allow: not measured
INSTANCE_ROW_ACCUMULATOR_BYTES = 1 << 17  # half of the registers: "GPU kernels"
INSTRUCTION_TILE = 16  # rows, columns and depth of a matrix instruction, at least: not measured
CONTRACTION_TILE = 128  # rows and columns of a product's block: not measured
MIN_CONTRACTION_TILE = 64  # where smaller blocks occupy more multiprocessors: not measured
CONTRACTION_DEPTH_BYTES = 128  # of a row of a factor in a block, a cache line: not measured
CONTRACTION_STAGES = 4  # blocks of the factors in flight: not measured
MIN_CONTRACTION_STAGES = 3  # even if one instance then takes all shared memory: not measured
CONTRACTION_ELEMENTS_PER_WARP = 2048  # of the results, 64 registers a thread: not measured
CONTRACTION_SPLITS = 8  # program instances that share the depth of a block: not measured
SHARED_OPERAND_ROWS = 8  # blocks of rows that consecutive instances compute: not measured
HELD_ROW_BYTES = 96 << 10  # of sums of columns and parameters in an instance: "GPU kernels"
MAX_REGISTER_LOADS = 2  # along a row of 4-byte elements beyond REGISTER_TILE: "GPU kernels"
MAX_MERGED_SUMS = 4  # sums in one reduction; each sum holds a tile in registers: not measured

# -- calls ---------------------------------------------------------------------------------------
GUARDED_CALL_US = 12.0  # of Dynamo's guards and wrappers, at least: "Call overhead"
COLD_CALL_US = 100.0  # the same, after data displaced them from the caches: "Call overhead"
COLD_TRAINING_CALL_US = 300.0  # the same of a training step: "Call overhead"
TRAINING_CALL_US = 70.0  # of forward and backward, with autograd's functions: "Call overhead"

FIRST_CALL_TIMING_S = 0.02  # eager and compiled together: not measured
MAX_TIMED_FIRST_CALL_S = 0.2  # a program whose call takes longer is not timed: not measured
MIN_FIRST_CALL_TIMING_ROUNDS = 3  # each times eager and compiled: not measured
MIN_CALLS_OF_PLAN_WITH_ROOM = 64  # a chunk costs 8 us: "Room on the stack of frames"
MIN_COMPILED_GAIN = 1.03  # times faster, so that compiled code runs what was timed: "Call overhead"

# -- launches by tiles of rows --------------------------------------------------------------------
TRIED_TILE_HEIGHTS = (128, 64, 32, 16, 8, 4)  # rows; the first that fits is taken: "Tiles of rows"
MAX_LAUNCHES_BY_TILES = 8  # more have many rows where chunks meet: not measured
MAX_PREDICTED_TILED_SHARE_OF_SEPARATE_TIME = 0.99  # any gain is taken: "Tiles of rows"
MAX_TILE_SCRATCH_L2_SHARE = 0.5  # more pushes out what a tile reads and stores: "Tiles of rows"
MAX_SHARE_OF_TILES_IN_MEMORY = 0.25  # others have scratch alone: not measured
MEMORY_TIME_OVER_ASSUMED = 2.0  # three processors were measured: "Tiles of rows"
TILE_CHUNKS_PER_THREAD = 4  # more compute more rows twice: not measured
CALL_US_PER_KERNEL_AND_TILE = 0.15  # a slice is called: not measured

# -- matrix products: ns an element of B, and shares of `Machine.flops` ---------------------------
LIBRARY_ELEMENT_NS, LIBRARY_RATE = 0.38, 1.35  # that the library packs: "Products of few rows"
LIBRARY_CACHED_ELEMENT_NS = 0.1  # the same, of a B in L2: "Products of few rows"
PACKED_ELEMENT_NS, PACKED_RATE = 0.55, 1.65  # that our blocked loops pack: "Products of few rows"
MICROPANEL_COLUMNS = 32  # even if partly empty: "Matrix products"
DIRECT_ELEMENT_NS, DIRECT_RATE = 0.17, 1.1  # that is read once: "Products of few rows"
DIRECT_UNALIGNED = 1.7  # times, if rows of B are no whole cache lines: "Products of few rows"
STREAMED_ROWS = 4  # so few rows, the library reads B once, too: "Products of few rows"
# the elements of a weight in memory, and the rows up to which a kernel multiplies it faster
KERNEL_ROWS_BF16 = ((1 << 16, 16), (1 << 18, 8), (1 << 21, 4), (1 << 62, 3))  # "Small weights"
KERNEL_ROWS_F16 = ((1 << 62, 16),)  # more run by blocks: "Small weights"
KERNEL_ROWS_F32 = ((1 << 18, 16), (1 << 20, 4), (1 << 62, 1))  # "Small weights"
KERNEL_ROWS_F32_AVX2 = ((1 << 62, 4),)  # the library is as fast with more: "Products by blocks"
PRODUCT_CALL_US = 5.0  # of our call, more than the library's: "Products of few rows"
MIN_PRODUCT_GAIN = 1.25  # predicted, of our kernel over the library: "Products of few rows"

# -- backends ------------------------------------------------------------------------------------
MAX_LOOP_SEGMENTS = 6  # each with code of its own: not measured
MAX_SEGMENT_LOADS = 64  # in all segments, that allow more segments: "Index-set splitting"
MIN_PEELED_GROUPS = 4  # of vectors in a loop worth peeling: not measured
COLUMN_SUM_ROWS_AT_ONCE = 8  # sums in memory are then written less: "Sums of columns"
MAX_RESULT_ROWS_INSIDE_DEPTH = 16  # sums of more leave the L2 cache: not measured
MAX_JAMMED_COLUMN_SUM_STATEMENTS = 256  # more leave the registers: "Sums of columns"
STAGE_UNROLL = 4  # vectors an iteration when a stage is added to the next: not measured
PREFETCHED_MATRIX = 1 << 18  # elements that do not fit in L2: "Register transposes"
BLOCK_MICROPANELS = 16  # of A, which with B's fill half of L2: "Matrix products"
PANEL_COLUMNS = 512  # of B in a panel: "Matrix products"
PANEL_DEPTH = 256  # of a micropanel: "Matrix products"
MIN_BLOCK_DEPTH_STEPS, MAX_BLOCK_DEPTH_STEPS = 256, 2048  # more gain nothing: "Products by blocks"
LEFT_BLOCK_L2_SHARE = 1 / 8  # more leaves less for the right panel: "Products by blocks"
HALF_FULL_MICROPANEL_COST_COLUMNS = 24  # a full one costs 32: "Products by blocks"
BLOCK_TRANSPOSE_ELEMENT_NS = 0.06  # in the L2 cache, with its copy: "Products by blocks"
LIBRARY_AMX_FLOPS_PER_NS_AND_THREAD = 220.0  # oneDNN's products: "Products by blocks"
MICROKERNEL_AMX_SPEEDUP_OVER_FLOAT32 = 5.0  # products of bfloat16: "Products by blocks"
MIN_BLOCKED_PRODUCT_EXTENT = 16  # a nest of fewer rows or columns is more exact: not measured
MIN_BLOCKED_FLOAT32_PRODUCT_EXTENT_AVX512 = 33  # a nest is as fast below: "Products by blocks"
MIN_BLOCKED_FLOAT32_PRODUCT_ROWS = 40  # fewer pack the weight in vain: "Products by blocks"
MAX_BLOCKED_FLOAT32_WEIGHT_L2_SHARE = 0.9  # larger ones gain little: "Products by blocks"
MAX_PRODUCT_TILE_ROWS = 512  # more leave the L2 cache: "Products by blocks"
MIN_PRODUCT_TILE_COLUMNS = 64  # fewer pack the rows too often: not measured
MIN_TILE_ROW_MICROPANELS = 4  # smaller tiles pack the columns too often: not measured
PARTIAL_PRODUCT_SUM_STEPS = 128  # longer sums are less exact: "Products by blocks"
CHAIN_BLOCK_L2_SHARE = 0.5  # right factors need the rest: not measured
MIN_CHAIN_TASKS = 64  # threads are idle with fewer: not measured
MIN_CHAIN_BLOCK_ROWS = 16  # smaller blocks read the right factors too often: not measured
MAX_CHAINED_FACTOR_FLOAT32_BYTES = 4 << 20  # it is packed once for all rows: not measured
MIN_SINGLE_QUERY_FLOAT32_KEY_ELEMENTS = 1 << 21  # caches hold fewer: "Chains of products"
CHAIN_REJECTION_MARGIN = 1.25  # the cost without a chain is a lower bound: not measured
MAX_CHAINED_VALUES = 256  # from a product to its readers, views included: not measured
MAX_CHAINED_PRODUCTS = 8  # more take long to compile: "Chains of products"
MAX_CHAIN_THREAD_WORKSPACE_BYTES = 16 << 20  # it is mostly right factors: not measured
BLOCKED_TASKS_PER_THREAD = 4  # threads then wait little for the last: not measured
PANEL_OVERHEAD = 0.7  # of a micropanel, in rows: not measured
DIRECT_ROWS, DIRECT_COLUMNS = 8, 4  # of a product at once, at most: not measured
MAX_DECODED_PRODUCT_ROWS = 32  # more decode the weight too often: "Decoded weights"
MAX_COLUMN_WEIGHT_ROWS = 8  # their sums are kept in memory: "Decoded weights"
MAX_JAMMED_ROWS, MAX_JAMMED_COLUMNS = 8, 4  # registers hold no more: "Decoded weights"
JAMMED_SUM_REGISTER_SHARE = 0.5  # the others hold factors: "Decoded weights"
MAX_PRODUCT_SUM_CHAINS = 4  # more wait no less for one another: not measured
MAX_INNER_SUM_GROUPS = 4  # more terms need a stage of their own: not measured
MAX_LOOKUP_TABLE_REGISTERS = 2  # each takes a shuffle: not measured
CONTRACTION_TASKS_PER_THREAD = 8  # threads then wait little for the last: not measured
MAX_CONTRACTION_STRIP_COLUMNS = 64  # larger ones leave fewer tasks: not measured
MIN_PREFETCHED_ROW_BYTES = 2048  # shorter rows end before the prefetch: not measured
L1_SET_BYTES = 4096  # addresses so far apart share a set of an L1 cache: "Decoded weights"
DIRECT_DEPTH = 2048  # along a sum, between additions across lanes: "Products of few rows"

# -- machine code --------------------------------------------------------------------------------
MAX_LIBRARIES_PER_LINKER = 64  # it keeps 9 KB of each until it ends: "Freed code"
MAX_RECENT_LINKED_TEXTS = 64  # that stay linked for a program that is compiled again: not measured

# -- plan, runtime and autotuning ----------------------------------------------------------------
MAX_OVERSIZE = 2  # times the request, of a block that serves it: "Memory pool"
RECENT_PROBES = 2  # blocks that are checked before all others: "Memory pool"
WORK_PER_THREAD = 300_000.0  # units of `kernel_work`, about 10 us: "Threads and launches"
WORK_PER_TASK = WORK_PER_THREAD / 4  # less does not pay for a task: not measured
PRODUCT_FLOPS_PER_THREAD = 2_000_000  # about 10 us: "Threads and launches"
PACKED_ELEMENT_COST = 8  # in iterations of the microkernel: not measured
TASKS_PER_THREAD = 8  # so that threads wait little for the last one: not measured
MAX_SERIAL_KERNELS = 4  # on one thread, faster as separate calls: "Threads and launches"
MAX_SHARED_WORKSPACE = 1 << 14  # bytes a thread; more is one share per thread: not measured
MAX_GROUPED_CALLS = 256  # of a GPU kernel in one launch, which compiles in 2 s: "GPU kernels"
MAX_GROUPED_WORKSPACE = 1 << 16  # bytes a thread; more is launched alone: not measured
MIN_TUNED_GAIN_SHARE = 0.03  # less may be noise: not measured
CPU_CANDIDATE_TIMING_S = 0.05  # each alone: not measured
MIN_RECORDED_LAUNCHES = 2  # of a recorded CUDA graph; one takes as long as a replay: not measured
GPU_CANDIDATES_TIMING_S = 0.25  # all together: not measured
MAX_TUNED_TILINGS = 12  # beside the heuristics' choice: not measured
MAX_LARGEST_TO_TUNED_LAUNCH_POINTS = 16  # smaller launches take little time: not measured
MAX_TUNED_ROW = 1 << 16  # elements of a row that autotuning holds in registers: not measured
SLOW_CANDIDATE = 1.5  # times the fastest, beyond which timing a candidate ends: not measured
MIN_TUNED_WARPS = 16  # that a multiprocessor holds of 64; fewer hide less latency: not measured
CLEARED_BYTES = 256 << 20  # written before each timed call, more than any L2 cache: not measured
MAX_TUNED_SCHEDULES = 4  # timed beside the heuristics' choice: not measured
MAX_TUNED_CUTS_PER_REGION = 12  # predicted, not timed: not measured
MIN_REROLLED_LOOP_STEPS = 8  # fewer fit in one kernel as they are: not measured
MAX_EQUAL_OP_DISTANCES_TRIED = 16  # the most frequent are tried first: not measured
MAX_RESULTS_OF_SINGLE_STEPS = 4  # each is a read of all steps' results: not measured
MAX_CARRY_BYTES_IN_REGISTERS = 512  # AVX-512 has four times as many: not measured
MAX_RECURRENCE_VECTOR_AXES = 3  # their schedules are compared by cost: not measured
MAX_TIME_SHARE_OF_OTHER_VECTOR_AXIS = 0.8  # predictions differ less by chance: not measured
MAX_REROLLED_LOOPS = 32  # each costs a walk over the program: not measured
MAX_STEPS_READ_BACK = 2  # a filter of second order needs them: not measured
MAX_UNROLLED_SCAN_STEPS = 512  # tracing more takes seconds: not measured
MIN_SCATTERED_VALUES_PER_ELEMENT = 1.5  # a kernel writes all elements: "Values combined by index"
MAX_SERIAL_SCATTER_START_ELEMENTS = 1 << 16  # they take microseconds: "Values combined by index"
