// What vector_ops' second look does with one lane (`second_value` of vector_ops/chain.hpp): RMSNorm,
// RoPE, the gate, or nothing. Whatever is sooner waits for the gate.
module second_look (
    input wire clk,
    input wire signed [31:0] own,
    input wire signed [31:0] second,  // an up, or a partner of RoPE
    input wire [31:0] factor,         // a weight of RMSNorm, or a sine above a cosine
    // of the task and the row
    input wire [2:0] op,
    input wire [4:0] room,
    input wire is_zero,
    input wire is_rotated,
    input wire lost,
    input wire [4:0] room_gate,
    input wire [4:0] room_up,
    input wire signed [31:0] mantissa,
    input wire signed [31:0] limit,
    input wire signed [31:0] half,
    input wire [4:0] right,
    input wire [4:0] left,
    input wire keep,
    output reg signed [31:0] out,
    output reg changed,
    output reg [31:0] square  // of RMSNorm; sooner than the rest (latency::SQUARE)
);
    // ---- RMSNorm, RoPE, or the value itself ----
    wire signed [31:0] normed, rotated, rotated_8, own_8;
    wire [31:0] square_8;
    wire is_norm_8, is_rotated_8;
    reg signed [31:0] sooner;

    norm scale (
        .clk(clk), .value(own), .room(room), .weight(factor), .out(normed), .square(square_8));
    rotate pair (
        .clk(clk),
        .own(own),
        .partner(second),
        .room(room),
        .cosine(factor[15:0]),
        .sine(factor[31:16]),
        .out(rotated)
    );
    delay #(.WIDTH(32), .DEPTH(latency::NORM - latency::ROTATE)) for_rotated (
        .clk(clk), .in(rotated), .out(rotated_8));
    delay #(.WIDTH(34), .DEPTH(latency::NORM)) for_own (
        .clk(clk),
        .in({own, op == operation::NORM, is_rotated}),
        .out({own_8, is_norm_8, is_rotated_8})
    );
    always @(posedge clk) begin
        sooner <= is_norm_8 ? normed : is_rotated_8 ? rotated_8 : own_8;
        square <= is_norm_8 ? square_8 : 32'd0;
    end

    // ---- the gate ----
    wire signed [31:0] gated, sooner_end;
    wire gate_changed, is_gate_end, is_zero_end, lost_end;

    gate silu_times_up (
        .clk(clk),
        .gate_value(own),
        .up_value(second),
        .room_gate(room_gate),
        .room_up(room_up),
        .mantissa(mantissa),
        .limit(limit),
        .half(half),
        .right(right),
        .left(left),
        .keep(keep),
        .out(gated),
        .changed(gate_changed)
    );
    delay #(.WIDTH(32), .DEPTH(latency::GATE - latency::NORM - 1)) for_end (
        .clk(clk), .in(sooner), .out(sooner_end));
    delay #(.WIDTH(3), .DEPTH(latency::GATE)) for_choice (
        .clk(clk),
        .in({op == operation::GATE, is_zero, lost}),
        .out({is_gate_end, is_zero_end, lost_end})
    );
    always @(posedge clk) begin
        out <= !is_gate_end ? sooner_end : is_zero_end ? 32'sd0 : gated;
        changed <= is_gate_end & ~is_zero_end & lost_end & gate_changed;
    end
endmodule
