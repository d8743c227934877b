// pe_array: ROW_PAIRS x COLUMNS elements, the array of gemm_int8 (mac_array) in small or in full.
//
// As there, one memory word holds COLUMNS rows of TILE_K values, on the activation port and on the
// weight port alike. Each weight word that leaves the FIFO is one step of k for the whole array;
// every row pair reads its own bank at that step. A tile ends after last_step + 1 steps, and
// tile_valid shows its sums for one cycle; the next tile's first step may follow at once. Where
// the FIFO is empty or run is low the array waits and loses nothing.
//
// Held by the caller: half and last_step keep their value while a tile's steps are taken, and the
// other half alone is filled. Row r, column j of a tile is in tile[32 * (r * COLUMNS + j) +: 32].
module pe_array #(
    parameter ROW_PAIRS = 2,
    parameter COLUMNS = 4,
    parameter TILE_K = 4,
    parameter STEPS = 4096,
    parameter FIFO_DEPTH = 512
) (
    input wire clk,
    input wire rst,
    // activations, COLUMNS rows of group fill_group at one step
    input wire fill_valid,
    input wire fill_half,
    input wire [7:0] fill_group,
    input wire [$clog2(STEPS)-1:0] fill_step,
    input wire [8*TILE_K*COLUMNS-1:0] fill_word,
    // weights
    input wire weight_valid,
    output wire weight_ready,
    input wire [8*TILE_K*COLUMNS-1:0] weight_word,
    // work
    input wire run,
    input wire half,
    input wire [$clog2(STEPS)-1:0] last_step,
    output wire step_taken,
    output wire tile_valid,
    output wire [64*ROW_PAIRS*COLUMNS-1:0] tile
);
    localparam GROUP_PAIRS = COLUMNS / 2;
    localparam OPERAND_DELAY = 2;           // from a step taken to lane 0 at the elements
    localparam SUM_DELAY = OPERAND_DELAY + TILE_K + 2;

    // ---- steps ----
    wire empty;
    reg [$clog2(STEPS)-1:0] step;
    wire pop = run & ~empty & ~rst;
    wire first = step == 0;
    wire last = step == last_step;
    reg [SUM_DELAY-1:0] valid_q, first_q;
    reg [SUM_DELAY:0] last_q;

    assign step_taken = pop;
    assign tile_valid = last_q[SUM_DELAY];

    always @(posedge clk) begin
        if (rst) begin
            step <= 0;
            valid_q <= 0;
            last_q <= 0;
        end else begin
            if (pop) step <= last ? 0 : step + 1'b1;
            valid_q <= {valid_q[SUM_DELAY-2:0], pop};
            last_q <= {last_q[SUM_DELAY-1:0], pop & last};
        end
        first_q <= {first_q[SUM_DELAY-2:0], first};
    end

    // ---- weights, shared down a column ----
    wire [8*TILE_K*COLUMNS-1:0] popped;
    reg [8*TILE_K*COLUMNS-1:0] popped_q;
    wire [8*TILE_K*COLUMNS-1:0] weights;

    always @(posedge clk) popped_q <= popped;

    weight_fifo #(
        .WIDTH(8 * TILE_K * COLUMNS),
        .DEPTH(FIFO_DEPTH)
    ) fifo (
        .clk(clk),
        .rst(rst),
        .in_valid(weight_valid),
        .in_ready(weight_ready),
        .in_word(weight_word),
        .empty(empty),
        .pop(pop),
        .word(popped)
    );

    // ---- activations, shared along a row; the elements ----
    genvar p, j;
    generate
        for (j = 0; j < COLUMNS; j = j + 1) begin : column
            skew #(
                .LANES(TILE_K),
                .WIDTH(8)
            ) weight_skew (
                .clk(clk),
                .in(popped_q[8*TILE_K*j+:8*TILE_K]),
                .out(weights[8*TILE_K*j+:8*TILE_K])
            );
        end
        for (p = 0; p < ROW_PAIRS; p = p + 1) begin : row
            wire [27*TILE_K-1:0] packed_acts, acts;
            row_bank #(
                .TILE_K(TILE_K),
                .STEPS(STEPS)
            ) bank (
                .clk(clk),
                .fill_enable(fill_valid && fill_group == 8'(p / GROUP_PAIRS)),
                .fill_half(fill_half),
                .fill_step(fill_step),
                .fill_pair(fill_word[16*TILE_K*(p%GROUP_PAIRS)+:16*TILE_K]),
                .read_enable(pop),
                .read_half(half),
                .read_step(step),
                .act(packed_acts)
            );
            skew #(
                .LANES(TILE_K),
                .WIDTH(27)
            ) act_skew (
                .clk(clk),
                .in(packed_acts),
                .out(acts)
            );
            for (j = 0; j < COLUMNS; j = j + 1) begin : pe
                packed_pe #(
                    .TILE_K(TILE_K)
                ) element (
                    .clk(clk),
                    .act(acts),
                    .weight(weights[8*TILE_K*j+:8*TILE_K]),
                    .sum_valid(valid_q[SUM_DELAY-1]),
                    .sum_clear(first_q[SUM_DELAY-1]),
                    .acc_low(tile[32*(2*p*COLUMNS+j)+:32]),
                    .acc_high(tile[32*((2*p+1)*COLUMNS+j)+:32])
                );
            end
        end
    endgenerate
endmodule
