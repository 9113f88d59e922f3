"""LLVM IR of the driver that runs the shares of many kernels in one parallel region.

`i32 @kernel(ptr block)` takes 64-bit words: the number of rounds, the number of threads, and for
each round a counter that starts at 0, the number of tasks, the address of the tasks, and the base
address of the contexts. A task has four words: a kernel's function, the byte offset of its context,
the number of the share, and the number of shares. Each thread takes the next task when it has
finished one. All threads wait for each other between rounds.

`@kernel.tile` is a function of tasks; see `tile_driver.py`.
"""

from __future__ import annotations

from tofuse.backends.cpu.llvm.tile_driver import tile_function

PARALLEL_DRIVER = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare void @GOMP_barrier()
declare i32 @omp_get_thread_num()

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
""" + tile_function("kernel.tile")
