"""LLVM IR of the driver that runs the shares of many kernels in one parallel region, or tiles.

`i32 @kernel(ptr block)` takes 64-bit words: the number of rounds, the number of threads, and for
each round a counter that starts at 0, the number of tasks, the address of the tasks, and the base
address of the contexts. A task has four words: a kernel's function, the byte offset of its context,
the number of the share, and the number of shares. Each thread takes the next task when it has
finished one. All threads wait for each other between rounds.

`@kernel.tile` is a function of tasks, whose shares are chunks of tiles. A tile runs parts of
several kernels in order, in memory of its thread. Its context has five words: the address of the
chunks, that of the tiles, the address of the first thread's area, the bytes of an area, the number
of threads. The first word of an area is the address of the scratch.

- A chunk has two words: its first tile, and the first one after it.
- A tile has six words: the addresses and numbers of its moves, its copies and its parts.
- A move has three words: the byte offsets in the area of a target and of a source, and a number.
  The target becomes the source plus the number.
- A copy has three words: the byte offsets in the scratch of a target and of a source behind it, and
  the number of cache lines.
- A part has five words: a kernel's function, the byte offset of its context in the area, the first
  iteration, the first one after it, and the number of all.
"""

PARALLEL_DRIVER = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare void @GOMP_barrier()
declare i32 @omp_get_thread_num()

define void @kernel.tile(ptr %context, i64 %unused, i64 %number, i64 %end, i64 %whole) nounwind {
entry:
  %chunks.slot = getelementptr i64, ptr %context, i64 0
  %chunks = load ptr, ptr %chunks.slot
  %tiles.slot = getelementptr i64, ptr %context, i64 1
  %tiles = load ptr, ptr %tiles.slot
  %areas.slot = getelementptr i64, ptr %context, i64 2
  %areas = load ptr, ptr %areas.slot
  %bytes.slot = getelementptr i64, ptr %context, i64 3
  %bytes = load i64, ptr %bytes.slot
  %threads.slot = getelementptr i64, ptr %context, i64 4
  %threads = load i64, ptr %threads.slot
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %start, label %numbered
numbered:
  %own = call i32 @omp_get_thread_num()
  %long = sext i32 %own to i64
  br label %start
start:
  %thread = phi i64 [ 0, %entry ], [ %long, %numbered ]
  %skip = mul i64 %thread, %bytes
  %area = getelementptr i8, ptr %areas, i64 %skip
  %scratch = load ptr, ptr %area
  %chunk.words = shl i64 %number, 1
  %chunk = getelementptr i64, ptr %chunks, i64 %chunk.words
  %first.tile.slot = getelementptr i64, ptr %chunk, i64 0
  %first.tile = load i64, ptr %first.tile.slot
  %end.tile.slot = getelementptr i64, ptr %chunk, i64 1
  %end.tile = load i64, ptr %end.tile.slot
  br label %tile.next
tile.next:
  %tile.k = phi i64 [ %first.tile, %start ], [ %tile.after, %tile.done ]
  %tile.more = icmp slt i64 %tile.k, %end.tile
  br i1 %tile.more, label %tile.run, label %exit
tile.run:
  %tile.words = mul i64 %tile.k, 6
  %tile = getelementptr i64, ptr %tiles, i64 %tile.words
  %move.table.slot = getelementptr i64, ptr %tile, i64 0
  %move.table = load ptr, ptr %move.table.slot
  %move.count.slot = getelementptr i64, ptr %tile, i64 1
  %move.count = load i64, ptr %move.count.slot
  %copy.table.slot = getelementptr i64, ptr %tile, i64 2
  %copy.table = load ptr, ptr %copy.table.slot
  %copy.count.slot = getelementptr i64, ptr %tile, i64 3
  %copy.count = load i64, ptr %copy.count.slot
  %part.table.slot = getelementptr i64, ptr %tile, i64 4
  %part.table = load ptr, ptr %part.table.slot
  %part.count.slot = getelementptr i64, ptr %tile, i64 5
  %part.count = load i64, ptr %part.count.slot
  br label %move.next
move.next:
  %move.k = phi i64 [ 0, %tile.run ], [ %move.after, %move.done ]
  %move.more = icmp slt i64 %move.k, %move.count
  br i1 %move.more, label %move.run, label %copy.next
move.run:
  %move.words = mul i64 %move.k, 3
  %move.at = getelementptr i64, ptr %move.table, i64 %move.words
  %move.target.slot = getelementptr i64, ptr %move.at, i64 0
  %move.target = load i64, ptr %move.target.slot
  %move.source.slot = getelementptr i64, ptr %move.at, i64 1
  %move.source = load i64, ptr %move.source.slot
  %shift.slot = getelementptr i64, ptr %move.at, i64 2
  %shift = load i64, ptr %shift.slot
  %to = getelementptr i8, ptr %area, i64 %move.target
  %from = getelementptr i8, ptr %area, i64 %move.source
  %old = load i64, ptr %from
  %new = add i64 %old, %shift
  store i64 %new, ptr %to
  br label %move.done
move.done:
  %move.after = add i64 %move.k, 1
  br label %move.next
copy.next:
  %copy.k = phi i64 [ 0, %move.next ], [ %copy.after, %copy.done ]
  %copy.more = icmp slt i64 %copy.k, %copy.count
  br i1 %copy.more, label %copy.run, label %part.next
copy.run:
  %copy.words = mul i64 %copy.k, 3
  %copy.at = getelementptr i64, ptr %copy.table, i64 %copy.words
  %copy.target.slot = getelementptr i64, ptr %copy.at, i64 0
  %copy.target = load i64, ptr %copy.target.slot
  %copy.source.slot = getelementptr i64, ptr %copy.at, i64 1
  %copy.source = load i64, ptr %copy.source.slot
  %lines.slot = getelementptr i64, ptr %copy.at, i64 2
  %lines = load i64, ptr %lines.slot
  %low = getelementptr i8, ptr %scratch, i64 %copy.target
  %high = getelementptr i8, ptr %scratch, i64 %copy.source
  br label %line.next
line.next:
  %line.k = phi i64 [ 0, %copy.run ], [ %line.after, %line.run ]
  %line.more = icmp slt i64 %line.k, %lines
  br i1 %line.more, label %line.run, label %line.exit
line.run:
  %line.bytes = shl i64 %line.k, 6
  %read = getelementptr i8, ptr %high, i64 %line.bytes
  %written = getelementptr i8, ptr %low, i64 %line.bytes
  %line = load <64 x i8>, ptr %read, align 1
  store <64 x i8> %line, ptr %written, align 1
  %line.after = add i64 %line.k, 1
  br label %line.next
line.exit:
  br label %copy.done
copy.done:
  %copy.after = add i64 %copy.k, 1
  br label %copy.next
part.next:
  %part.k = phi i64 [ 0, %copy.next ], [ %part.after, %part.done ]
  %part.more = icmp slt i64 %part.k, %part.count
  br i1 %part.more, label %part.run, label %tile.done
part.run:
  %part.words = mul i64 %part.k, 5
  %part.at = getelementptr i64, ptr %part.table, i64 %part.words
  %function.slot = getelementptr i64, ptr %part.at, i64 0
  %function = load ptr, ptr %function.slot
  %place.slot = getelementptr i64, ptr %part.at, i64 1
  %place = load i64, ptr %place.slot
  %part.first.slot = getelementptr i64, ptr %part.at, i64 2
  %part.first = load i64, ptr %part.first.slot
  %part.end.slot = getelementptr i64, ptr %part.at, i64 3
  %part.end = load i64, ptr %part.end.slot
  %part.whole.slot = getelementptr i64, ptr %part.at, i64 4
  %part.whole = load i64, ptr %part.whole.slot
  %own.ctx = getelementptr i8, ptr %area, i64 %place
  call void %function(ptr %own.ctx, i64 %thread, i64 %part.first, i64 %part.end, i64 %part.whole)
  br label %part.done
part.done:
  %part.after = add i64 %part.k, 1
  br label %part.next
tile.done:
  %tile.after = add i64 %tile.k, 1
  br label %tile.next
exit:
  ret void
}

define internal void @round(ptr %round) nounwind {
entry:
  %count.at = getelementptr i64, ptr %round, i64 1
  %tasks.at = getelementptr i64, ptr %round, i64 2
  %base.at = getelementptr i64, ptr %round, i64 3
  %count = load i64, ptr %count.at
  %tasks = load ptr, ptr %tasks.at
  %base = load ptr, ptr %base.at
  br label %next
next:
  %k = atomicrmw add ptr %round, i64 1 monotonic
  %more = icmp slt i64 %k, %count
  br i1 %more, label %run, label %done
run:
  %first = shl i64 %k, 2
  %task = getelementptr i64, ptr %tasks, i64 %first
  %place.at = getelementptr i64, ptr %task, i64 1
  %share.at = getelementptr i64, ptr %task, i64 2
  %shares.at = getelementptr i64, ptr %task, i64 3
  %function = load ptr, ptr %task
  %place = load i64, ptr %place.at
  %share = load i64, ptr %share.at
  %shares = load i64, ptr %shares.at
  %context = getelementptr i8, ptr %base, i64 %place
  %end = add i64 %share, 1
  call void %function(ptr %context, i64 %share, i64 %share, i64 %end, i64 %shares)
  br label %next
done:
  ret void
}

define internal void @worker(ptr %block) nounwind {
entry:
  %rounds = load i64, ptr %block
  br label %next
next:
  %r = phi i64 [ 0, %entry ], [ %after, %wait ]
  %skip = shl i64 %r, 2
  %at = add i64 %skip, 2
  %round = getelementptr i64, ptr %block, i64 %at
  call void @round(ptr %round)
  %after = add i64 %r, 1
  %more = icmp slt i64 %after, %rounds
  br i1 %more, label %wait, label %done
wait:
  call void @GOMP_barrier()
  br label %next
done:
  ret void
}

define i32 @kernel(ptr %block) nounwind {
entry:
  %threads.at = getelementptr i64, ptr %block, i64 1
  %threads = load i64, ptr %threads.at
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %one, label %many
one:
  call void @worker(ptr %block)
  ret i32 0
many:
  %few = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @worker, ptr %block, i32 %few, i32 0)
  ret i32 0
}
"""
