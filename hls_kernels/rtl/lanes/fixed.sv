// A value of a segment in fixed point: high(value, mantissa), clipped and shifted (rounded_shift).
module fixed (
    input wire clk,
    input wire signed [31:0] value,
    input wire signed [31:0] mantissa,
    input wire signed [31:0] limit,
    input wire signed [31:0] half,
    input wire [4:0] right,
    input wire [4:0] left,
    input wire keep,
    output wire signed [31:0] out,
    output wire changed
);
    localparam SHIFTER = 32 + 32 + 5 + 5 + 1;

    wire signed [31:0] scaled, limit_6, half_6;
    wire [4:0] right_6, left_6;
    wire keep_6;

    product scale (.clk(clk), .a(value), .b(mantissa), .out(scaled));
    delay #(.WIDTH(SHIFTER), .DEPTH(latency::PRODUCT)) for_shift (
        .clk(clk),
        .in({limit, half, right, left, keep}),
        .out({limit_6, half_6, right_6, left_6, keep_6})
    );
    rounded_shift move (
        .clk(clk),
        .value(scaled),
        .limit(limit_6),
        .half(half_6),
        .right(right_6),
        .left(left_6),
        .keep(keep_6),
        .out(out),
        .changed(changed)
    );
endmodule
