// Sixteen lanes of vector_ops' GATE: products to values, values to gated values, and these to codes,
// a word of sixteen a cycle each. The largest magnitudes that the next part's row constants need come
// from trees behind the last word of a row; rows follow one another without a gap.
//
// The parts are as far apart as the kernel's row buffers and divisions put them, so each has its own
// valid bit. What belongs to a row (shifts, factors) comes with each of its words.
module lane_group (
    input wire clk,
    // products to values: words of one half (gate or up) of a row
    input wire product_valid,
    input wire product_first,
    input wire product_last,
    input wire [32*16-1:0] acc,
    input wire [32*16-1:0] mantissa,
    input wire [5*16-1:0] down,
    input wire [4:0] input_shift,
    output wire value_valid,
    output wire [32*16-1:0] values,
    output wire value_peak_valid,
    output wire [31:0] value_peak,
    // gates and ups to gated values
    input wire gate_valid,
    input wire gate_first,
    input wire gate_last,
    input wire [32*16-1:0] gates,
    input wire [32*16-1:0] ups,
    input wire [4:0] room_gate,
    input wire [4:0] room_up,
    input wire [31:0] log2_mantissa,
    input wire [31:0] limit,
    input wire [31:0] half,
    input wire [4:0] right,
    input wire [4:0] left,
    input wire keep,
    output wire gated_valid,
    output wire [32*16-1:0] gated,
    output wire gated_peak_valid,
    output wire [31:0] gated_peak,
    output wire changed_valid,
    output reg changed,  // a gate of the row was clipped
    // gated values to codes
    input wire gated_in_valid,
    input wire [32*16-1:0] gated_in,
    input wire [4:0] room,
    input wire [16:0] factor,
    output wire code_valid,
    output wire [8*16-1:0] codes
);
    // ---- the lanes ----
    wire [15:0] changed_lanes;

    genvar i;
    generate
        for (i = 0; i < 16; i = i + 1) begin : lane
            dequantise to_value (
                .clk(clk),
                .acc(acc[32*i+:32]),
                .mantissa(mantissa[32*i+:32]),
                .down(down[5*i+:5]),
                .input_shift(input_shift),
                .out(values[32*i+:32])
            );
            gate to_gated (
                .clk(clk),
                .gate_value(gates[32*i+:32]),
                .up_value(ups[32*i+:32]),
                .room_gate(room_gate),
                .room_up(room_up),
                .mantissa(log2_mantissa),
                .limit(limit),
                .half(half),
                .right(right),
                .left(left),
                .keep(keep),
                .out(gated[32*i+:32]),
                .changed(changed_lanes[i])
            );
            quantise to_code (
                .clk(clk),
                .value(gated_in[32*i+:32]),
                .room(room),
                .factor(factor),
                .code(codes[8*i+:8])
            );
        end
    endgenerate

    // ---- rows: valid bits, peaks and marks ----
    wire value_first, value_last, gated_first, gated_last, mark, mark_valid, mark_first, mark_last;

    delay #(.WIDTH(3), .DEPTH(latency::DEQUANTISE)) beside_values (
        .clk(clk),
        .in({product_valid, product_first, product_last}),
        .out({value_valid, value_first, value_last})
    );
    row_peak peak_of_values (
        .clk(clk),
        .valid(value_valid),
        .first(value_first),
        .last(value_last),
        .word(values),
        .out_valid(value_peak_valid),
        .out(value_peak)
    );
    delay #(.WIDTH(3), .DEPTH(latency::GATE)) beside_gated (
        .clk(clk),
        .in({gate_valid, gate_first, gate_last}),
        .out({gated_valid, gated_first, gated_last})
    );
    row_peak peak_of_gated (
        .clk(clk),
        .valid(gated_valid),
        .first(gated_first),
        .last(gated_last),
        .word(gated),
        .out_valid(gated_peak_valid),
        .out(gated_peak)
    );
    or_tree #(.WIDTH(1)) any_mark (.clk(clk), .values(changed_lanes), .out(mark));
    delay #(.WIDTH(3), .DEPTH(latency::OR_TREE)) beside_mark (
        .clk(clk),
        .in({gated_valid, gated_first, gated_last}),
        .out({mark_valid, mark_first, mark_last})
    );
    always @(posedge clk) begin
        if (mark_valid) changed <= mark | (changed & ~mark_first);
    end
    delay #(.WIDTH(1), .DEPTH(1)) for_mark (
        .clk(clk), .in(mark_valid & mark_last), .out(changed_valid));
    delay #(.WIDTH(1), .DEPTH(latency::QUANTISE)) beside_codes (
        .clk(clk), .in(gated_in_valid), .out(code_valid));
endmodule
