// The mean of a row's squares as a scale (mean_of): their sum with 16 more fraction bits over their
// number.
module mean (
    input wire clk,
    input wire [45:0] squares,
    input wire [19:0] count,
    input wire signed [31:0] exponent,
    output wire [31:0] out_mantissa,
    output wire signed [31:0] out_exponent
);
    localparam BITS = 62;

    wire [BITS-1:0] share;
    reg signed [31:0] below;
    wire signed [31:0] exponent_share;

    quotient #(.N(BITS), .D(20)) divide_mean (
        .clk(clk), .numerator({squares, 16'd0}), .divisor(count), .out(share));
    always @(posedge clk) below <= exponent - 32'sd16;
    delay #(.WIDTH(32), .DEPTH(BITS - 1)) for_normal (
        .clk(clk), .in(below), .out(exponent_share));
    normalise #(.WIDTH(BITS + 1)) normal (
        .clk(clk),
        .value({1'b0, share}),
        .exponent(exponent_share),
        .out_mantissa(out_mantissa),
        .out_exponent(out_exponent)
    );
endmodule
