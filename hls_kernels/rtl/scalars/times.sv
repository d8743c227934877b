// The product of two scales.
module times (
    input wire clk,
    input wire signed [31:0] a_mantissa,
    input wire signed [31:0] a_exponent,
    input wire signed [31:0] b_mantissa,
    input wire signed [31:0] b_exponent,
    output reg [31:0] out_mantissa,
    output reg signed [31:0] out_exponent
);
    wire [32:0] mantissa;  // 31 or 32 bits
    wire over = mantissa[31];
    reg signed [31:0] exponent, exponent_30;
    reg zero;
    wire signed [31:0] exponent_6;
    wire zero_6;
    wire unused = mantissa[32];

    product #(.LOW(30), .OUT(33)) multiply (
        .clk(clk), .a(a_mantissa), .b(b_mantissa), .out(mantissa));
    delay #(.WIDTH(1), .DEPTH(latency::PRODUCT - 1)) for_zero (
        .clk(clk), .in(zero), .out(zero_6));
    delay #(.WIDTH(32), .DEPTH(latency::PRODUCT - 2)) for_exponent (
        .clk(clk), .in(exponent_30), .out(exponent_6));
    always @(posedge clk) begin
        zero <= a_mantissa == 0 || b_mantissa == 0;
        exponent <= a_exponent + b_exponent;
        exponent_30 <= exponent + 32'sd30;
        out_mantissa <= zero_6 ? 32'd0 : over ? {1'b0, mantissa[31:1]} : mantissa[31:0];
        out_exponent <= zero_6 ? 32'sd0 : exponent_6 + 32'(over);
    end
endmodule
