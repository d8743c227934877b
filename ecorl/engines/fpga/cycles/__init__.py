"""The cycle model of a card: loops, pipeline depths, kernel starts, memory channels.

model         time and energy of a batch on a card
kernel_calls  the calls of a forward, its kernel starts and transfers; cycles of kv_cache_router
kernels       common terms with the pipelines' depths; cycles of gemm_int8 and score_aggregator
vector        cycles of vector_ops
attention     cycles of mha_int8
hbm           rate and latency of the card's memory
hbm_layout    where models and a batch's buffers lie in that memory
"""
