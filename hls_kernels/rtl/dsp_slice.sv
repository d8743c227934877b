// One DSP48E2 as the cascade uses it: registers on both inputs (AREG, BREG), on the product (MREG)
// and on the sum (PREG), with the neighbour's sum coming in (PCIN).
module dsp_slice (
    input wire clk,
    input wire signed [26:0] act,         // (high << 18) + low
    input wire signed [7:0] weight,
    input wire signed [47:0] cascade_in,
    output reg signed [47:0] cascade_out  // three cycles after act and weight, one after cascade_in
);
    reg signed [26:0] act_q;
    reg signed [7:0] weight_q;
    reg signed [34:0] product_q;

    always @(posedge clk) begin
        act_q <= act;
        weight_q <= weight;
        product_q <= act_q * weight_q;
        cascade_out <= cascade_in + {{13{product_q[34]}}, product_q};
    end
endmodule
