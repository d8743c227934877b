// The term of a log-sum-exp of a logit below its block's ceiling, with 29 fraction bits.
module log_term (
    input wire clk,
    input wire signed [31:0] ceiling,
    input wire signed [31:0] logit,
    output wire signed [31:0] out
);
    reg signed [31:0] distance;
    wire [4:0] whole = $signed(distance[31:16]) > 16'sd31 ? 5'd31 : distance[20:16];
    wire [4:0] whole_13;
    wire signed [16:0] y;

    always @(posedge clk) distance <= ceiling - logit;
    exponential exp (.clk(clk), .f(distance[15:0]), .out(y));
    delay #(.WIDTH(5), .DEPTH(latency::EXPONENTIAL)) to_shift (
        .clk(clk), .in(whole), .out(whole_13));
    shift_right lower (.clk(clk), .value({1'b0, y, 14'd0}), .by(whole_13), .out(out));
endmodule
